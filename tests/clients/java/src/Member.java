import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** One member of a group, at work in a thread of its own; what others see of it is what it last said. */
final class Member implements AutoCloseable {
    private final KafkaConsumer<String, String> consumer;
    private final Work work;
    private final Watch watch;
    private final Thread thread;
    private volatile boolean running = true;

    volatile Set<Integer> assigned = Set.of();
    volatile int generation = -1;
    volatile Exception failure;
    /** "+0,1" for partitions that came, "-0,1" for those that were given up, "!0,1" for lost ones; nothing for none. */
    final List<String> events = new ArrayList<>();

    /** Takes ownership of the consumer. */
    Member(KafkaConsumer<String, String> consumer, String topic, Work work, Watch watch) {
        this.consumer = consumer;
        this.work = work;
        this.watch = watch;
        this.thread = new Thread(() -> live(topic));
        thread.setDaemon(true);
        thread.start();
    }

    Member(KafkaConsumer<String, String> consumer, String topic, Work work) {
        this(consumer, topic, work, (who, owned, partitions) -> { });
    }

    Member(KafkaConsumer<String, String> consumer, String topic) {
        this(consumer, topic, (records, from) -> { });
    }

    private void live(String topic) {
        try (consumer) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    note("+", partitions);
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    note("-", partitions);
                }

                @Override
                public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    note("!", partitions);
                }
            });
            while (running) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(50));
                generation = consumer.groupMetadata().generationId();
                assigned = numbers(consumer.assignment());
                if (!records.isEmpty()) {
                    work.on(records, consumer);
                }
            }
        } catch (Exception stopped) {
            failure = stopped;
        }
        assigned = Set.of();
    }

    private void note(String sign, Collection<TopicPartition> partitions) {
        watch.changed(this, sign.equals("+"), partitions);
        if (!partitions.isEmpty()) {
            synchronized (events) {
                events.add(sign + String.join(",", numbers(partitions).stream().map(String::valueOf).toList()));
            }
        }
    }

    List<String> events() {
        synchronized (events) {
            return List.copyOf(events);
        }
    }

    private static Set<Integer> numbers(Collection<TopicPartition> partitions) {
        Set<Integer> numbers = new TreeSet<>();
        partitions.forEach(each -> numbers.add(each.partition()));
        return numbers;
    }

    /** Waits until the members share so many partitions, each its part, and every partition has one reader. */
    static void untilTheyShare(int partitions, Member... members) throws Exception {
        Cluster.until(members.length + " members share " + partitions + " partitions", () -> {
            Set<Integer> all = new TreeSet<>();
            int sum = 0;
            for (Member member : members) {
                member.check();
                Set<Integer> part = member.assigned;
                if (part.isEmpty()) {
                    return false;
                }
                all.addAll(part);
                sum += part.size();
            }
            return all.size() == partitions && sum == partitions;
        });
    }

    void check() throws Exception {
        if (failure != null) {
            throw failure;
        }
    }

    String failureName() {
        return failure == null ? "" : failure.getClass().getSimpleName();
    }

    /** Leaves the group, unless it is a static member. */
    @Override
    public void close() throws InterruptedException {
        running = false;
        thread.join(Cluster.PATIENCE.toMillis());
    }

    /** Hears what a member owns from now on, or no more. */
    interface Watch {
        void changed(Member who, boolean owned, Collection<TopicPartition> partitions);
    }

    interface Work {
        void on(ConsumerRecords<String, String> records, KafkaConsumer<String, String> from) throws Exception;
    }
}
