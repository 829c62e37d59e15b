import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/** Groups: who reads what, and what happens to the records while that changes. */
final class Groups {
    private static final Object[] COOPERATIVE = {"partition.assignment.strategy", CooperativeStickyAssignor.class.getName()};
    /** KIP-848: the coordinator assigns. */
    private static final Object[] NEW_PROTOCOL = {"group.protocol", "consumer"};

    public static Object anEagerGroupGivesUpEverythingToShare(Cluster cluster) throws Exception {
        return shared(cluster, RangeAssignor.class);
    }

    public static Object aCooperativeGroupGivesUpOnlyWhatMoves(Cluster cluster) throws Exception {
        return shared(cluster, CooperativeStickyAssignor.class);
    }

    private static Object shared(Cluster cluster, Class<?> assignor) throws Exception {
        String topic = cluster.topic(4);
        String group = Cluster.fresh("group");
        Object[] settings = {"group.id", group, "partition.assignment.strategy", assignor.getName()};
        try (Member first = new Member(cluster.consumer(settings), topic)) {
            Member.untilTheyShare(4, first);
            try (Member second = new Member(cluster.consumer(settings), topic)) {
                Member.untilTheyShare(4, first, second);
            }
            Member.untilTheyShare(4, first);
            return Map.of("events", first.events(), "assignor", assignorOf(cluster, group));
        }
    }

    /** KIP-848: the coordinator assigns, and each member moves by itself; offsets are committed all the while. */
    public static Object aGroupOfTheNewProtocolGivesUpOnlyWhatMoves(Cluster cluster) throws Exception {
        String topic = cluster.topic(4);
        String group = Cluster.fresh("group");
        Object[] settings = {"group.id", group, "group.protocol", "consumer"};
        cluster.fill(topic, 4, Cluster.numbered("value", 40));
        Member.Work committing = (records, consumer) -> consumer.commitSync();
        try (Member first = new Member(cluster.consumer(settings), topic, committing)) {
            Member.untilTheyShare(4, first);
            try (Member second = new Member(cluster.consumer(settings), topic, committing)) {
                Member.untilTheyShare(4, first, second);
                cluster.fill(topic, 4, Cluster.numbered("more", 40));
                Cluster.until("all of it is committed", () -> {
                    first.check();
                    second.check();
                    return committed(cluster, group) == 80;
                });
            }
            Member.untilTheyShare(4, first);
            Cluster.until("it was told of all three changes", () -> first.events().size() >= 3);
            return Map.of("events", first.events(), "assignor", assignorOf(cluster, group));
        }
    }

    private static long committed(Cluster cluster, String group) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
            Cluster.done(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        return offsets.values().stream().mapToLong(OffsetAndMetadata::offset).sum();
    }

    /** From an eager to a cooperative assignor, one member after the other, as the documentation of Kafka prescribes. */
    public static Object aGroupMovesToTheCooperativeAssignorWhileItRuns(Cluster cluster) throws Exception {
        String topic = cluster.topic(4);
        String group = Cluster.fresh("group");
        String eager = StickyAssignor.class.getName();
        String both = CooperativeStickyAssignor.class.getName() + "," + eager;
        List<String> assignors = new ArrayList<>();
        Member one = new Member(cluster.consumer("group.id", group, "partition.assignment.strategy", eager), topic);
        Member.untilTheyShare(4, one);
        assignors.add(assignorOf(cluster, group));
        Member two = new Member(cluster.consumer("group.id", group, "partition.assignment.strategy", both), topic);
        Member.untilTheyShare(4, one, two);
        assignors.add(assignorOf(cluster, group));
        one.close();
        one = new Member(cluster.consumer("group.id", group, "partition.assignment.strategy", both), topic);
        Member.untilTheyShare(4, one, two);
        assignors.add(assignorOf(cluster, group));
        one.close();
        two.close();
        return Map.of("assignors", assignors);
    }

    private static String assignorOf(Cluster cluster, String group) throws Exception {
        return Cluster.done(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group).partitionAssignor();
    }

    public static Object aStaticMemberComesBackWithoutARebalance(Cluster cluster) throws Exception {
        String topic = cluster.topic(4);
        String group = Cluster.fresh("group");
        Map<String, Object> saw = new HashMap<>();
        try (Member other = new Member(cluster.consumer("group.id", group, "group.instance.id", "b"), topic)) {
            Member before = new Member(cluster.consumer("group.id", group, "group.instance.id", "a"), topic);
            Member.untilTheyShare(4, before, other);
            Set<Integer> had = before.assigned;
            List<String> events = other.events();
            int generation = other.generation;
            before.close();
            Member after = new Member(cluster.consumer("group.id", group, "group.instance.id", "a"), topic);
            Member.untilTheyShare(4, after, other);
            saw.put("same partitions", after.assigned.equals(had));
            saw.put("same generation", after.generation == generation && other.generation == generation);
            saw.put("the other noticed nothing", other.events().equals(events));
            try (Member usurper = new Member(cluster.consumer("group.id", group, "group.instance.id", "a"), topic)) {
                Cluster.until("the older of two with one name is fenced", () -> after.failure != null);
                saw.put("replaced", after.failureName());
                Member.untilTheyShare(4, usurper, other);
            }
            after.close();
        }
        return saw;
    }

    /** A feeder writes without a pause while members join and leave; who handles a record commits its offset afterwards. */
    public static Object nothingIsLostWhileMembersComeAndGo(Cluster cluster) throws Exception {
        String topic = cluster.topic(6);
        String group = Cluster.fresh("group");
        Set<String> handled = ConcurrentHashMap.newKeySet();
        Member.Work work = (records, from) -> {
            records.forEach(each -> handled.add(each.value()));
            try {
                from.commitSync();
            } catch (CommitFailedException | RebalanceInProgressException moved) {
                // another member reads these records again
            }
        };
        List<String> sent;
        try (Feeder feeder = new Feeder(cluster, topic, 6)) {
            comeAndGo(
                () -> new Member(cluster.consumer(and(COOPERATIVE, "group.id", group)), topic, work),
                () -> {
                    feeder.stop();
                    Cluster.until("every record is handled", () -> handled.containsAll(feeder.acknowledged));
                });
            sent = feeder.acknowledged;
        }
        return Map.of("sent", sent.size(), "lost", missing(sent, handled));
    }

    public static Object aGroupMovesBetweenTheProtocolsMemberByMember(Cluster cluster) throws Exception {
        return Map.of(
            "eager", movedThereAndBack(cluster, RangeAssignor.class),
            "cooperative", movedThereAndBack(cluster, CooperativeStickyAssignor.class));
    }

    /** KIP-848's online migration, both ways, while a feeder writes: no partition has two owners, no offset is passed over. */
    private static Object movedThereAndBack(Cluster cluster, Class<?> assignor) throws Exception {
        String topic = cluster.topic(6);
        String group = Cluster.fresh("group");
        Ownership ownership = new Ownership();
        Object[] classic = {"group.id", group, "session.timeout.ms", "6000", "partition.assignment.strategy", assignor.getName()};
        NewMember old = () -> new Member(cluster.consumer(classic), topic, ownership, ownership);
        NewMember upgraded = () -> new Member(cluster.consumer(and(NEW_PROTOCOL, "group.id", group)), topic, ownership, ownership);
        List<String> assignors = new ArrayList<>();
        int sent;
        try (Feeder feeder = new Feeder(cluster, topic, 6)) {
            Member one = old.member();
            Member two = old.member();
            Member.untilTheyShare(6, one, two);
            assignors.add(assignorOf(cluster, group));
            Member three = upgraded.member();
            Member.untilTheyShare(6, one, two, three);
            assignors.add(assignorOf(cluster, group));
            one.close();
            Member.untilTheyShare(6, two, three);
            Member four = upgraded.member();
            Member.untilTheyShare(6, two, three, four);
            two.close();
            Member.untilTheyShare(6, three, four);
            Member five = old.member();
            Member.untilTheyShare(6, three, four, five);
            three.close();
            Member.untilTheyShare(6, four, five);
            Member six = old.member();
            Member.untilTheyShare(6, four, five, six);
            four.close();
            Member.untilTheyShare(6, five, six);
            assignors.add(assignorOf(cluster, group));
            feeder.stop();
            sent = feeder.acknowledged.size();
            Cluster.until("every record is handled and committed", () ->
                ownership.handled() == sent && committed(cluster, group) == sent);
            five.close();
            six.close();
        }
        return Map.of("sent", sent, "wrong", ownership.wrong, "assignors", assignors);
    }

    public static Object nothingIsDoubledWhileMembersComeAndGo(Cluster cluster) throws Exception {
        return doubledWhileMembersComeAndGo(cluster, COOPERATIVE);
    }

    public static Object nothingIsDoubledInAGroupOfTheNewProtocol(Cluster cluster) throws Exception {
        return doubledWhileMembersComeAndGo(cluster, NEW_PROTOCOL);
    }

    /** The same with transactions, and with a member that stands still within one until the group has gone on without it. */
    private static Object doubledWhileMembersComeAndGo(Cluster cluster, Object[] settings) throws Exception {
        String source = cluster.topic(6);
        String target = cluster.topic(6);
        String group = Cluster.fresh("group");
        AtomicInteger aborted = new AtomicInteger();
        List<KafkaProducer<String, String>> producers = Collections.synchronizedList(new ArrayList<>());
        int sent;
        List<String> read;
        List<String> wanted;
        try (Feeder feeder = new Feeder(cluster, source, 6)) {
            comeAndGo(
                () -> {
                    KafkaProducer<String, String> producer = cluster.producer("transactional.id", Cluster.fresh("txn"));
                    producers.add(producer);
                    producer.initTransactions();
                    boolean stalls = producers.size() == 2;
                    AtomicBoolean stalled = new AtomicBoolean();
                    return new Member(
                        cluster.consumer(and(settings, "group.id", group, "max.poll.interval.ms", stalls ? 5000 : 60000)),
                        source,
                        (records, from) -> {
                            var next = Transactions.transform(records, producer, target, "out");
                            if (stalls && stalled.compareAndSet(false, true)) {
                                untilTheGroupWentOnWithout(cluster, group, from.groupMetadata().memberId());
                            }
                            if (!commit(producer, from, records, next)) {
                                aborted.incrementAndGet();
                            }
                        });
                },
                () -> {
                    feeder.stop();
                    Cluster.until("every record is handled", () -> {
                        var offsets = Cluster.done(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
                        long handled = offsets.values().stream().mapToLong(OffsetAndMetadata::offset).sum();
                        return handled >= feeder.acknowledged.size();
                    });
                });
            wanted = feeder.acknowledged.stream().map(value -> "out" + value.substring(value.indexOf('-'))).sorted().toList();
            read = cluster.read(target, "read_committed", wanted.size());
            sent = wanted.size();
        }
        producers.forEach(KafkaProducer::close);
        Map<String, Object> saw = new LinkedHashMap<>();
        saw.put("sent", sent);
        saw.put("lost", missing(wanted, new HashSet<>(read)));
        saw.put("read", read.size());
        saw.put("aborted", aborted.get());
        return saw;
    }

    /** False: the group had moved on; the output is aborted, and what is still ours of these records is read again. */
    private static boolean commit(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer,
            ConsumerRecords<String, String> records, Map<TopicPartition, OffsetAndMetadata> next) {
        try {
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
            producer.commitTransaction();
            return true;
        } catch (CommitFailedException moved) {
            producer.abortTransaction();
            for (TopicPartition each : records.partitions()) {
                if (consumer.assignment().contains(each)) {
                    consumer.seek(each, records.records(each).get(0).offset());
                }
            }
            return false;
        }
    }

    private static void untilTheGroupWentOnWithout(Cluster cluster, String group, String memberId) throws Exception {
        Cluster.until("the group goes on without " + memberId, () -> {
            var described = Cluster.done(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group);
            return described.members().stream().noneMatch(each -> each.consumerId().equals(memberId));
        });
    }

    private static void comeAndGo(NewMember create, Step atTheEnd) throws Exception {
        Member one = create.member();
        Member.untilTheyShare(6, one);
        Member two = create.member();
        Member three = create.member();
        Member.untilTheyShare(6, one, two, three);
        one.close();
        Member.untilTheyShare(6, two, three);
        Member four = create.member();
        Member.untilTheyShare(6, two, three, four);
        two.close();
        three.close();
        Member.untilTheyShare(6, four);
        atTheEnd.run();
        four.close();
    }

    private static Object[] and(Object[] settings, Object... more) {
        return Stream.concat(Stream.of(settings), Stream.of(more)).toArray();
    }

    private static List<String> missing(List<String> wanted, Set<String> found) {
        return wanted.stream().filter(each -> !found.contains(each)).limit(10).toList();
    }

    /**
     * Who owns each partition, and how far it was handled; commits what was handled. A consumer that is closed within a
     * reconciliation may give up a second time what it gave up before, also at a Kafka: that changes no owner.
     */
    private static final class Ownership implements Member.Work, Member.Watch {
        private final Map<TopicPartition, Member> owners = new HashMap<>();
        private final Map<TopicPartition, Long> next = new HashMap<>();
        final List<String> wrong = Collections.synchronizedList(new ArrayList<>());

        @Override
        public synchronized void changed(Member who, boolean owned, Collection<TopicPartition> partitions) {
            for (TopicPartition each : partitions) {
                if (!owned) {
                    owners.remove(each, who);
                } else if (owners.containsKey(each)) {
                    wrong.add(each.partition() + " has two owners: " + who.events() + " and " + owners.get(each).events());
                } else {
                    owners.put(each, who);
                }
            }
        }

        @Override
        public void on(ConsumerRecords<String, String> records, KafkaConsumer<String, String> from) {
            records.forEach(each -> handle(new TopicPartition(each.topic(), each.partition()), each.offset()));
            try {
                from.commitSync();
            } catch (CommitFailedException | RebalanceInProgressException moved) {
                // the next owner of these partitions reads these records again
            }
        }

        private synchronized void handle(TopicPartition partition, long offset) {
            long expected = next.getOrDefault(partition, 0L);
            if (offset > expected) {
                wrong.add(partition.partition() + " goes on at " + offset + " after " + expected);
            }
            next.put(partition, Math.max(expected, offset + 1));
        }

        synchronized long handled() {
            return next.values().stream().mapToLong(Long::longValue).sum();
        }
    }

    interface NewMember {
        Member member() throws Exception;
    }

    interface Step {
        void run() throws Exception;
    }

    /** Writes numbered records until it is stopped. */
    private static final class Feeder implements AutoCloseable {
        private final KafkaProducer<String, String> producer;
        private final Thread thread;
        private volatile boolean running = true;
        private volatile Exception failure;
        final List<String> acknowledged = Collections.synchronizedList(new ArrayList<>());

        Feeder(Cluster cluster, String topic, int partitions) {
            producer = cluster.producer();
            thread = new Thread(() -> {
                for (int number = 0; running; number++) {
                    String value = "in-" + number;
                    producer.send(new ProducerRecord<>(topic, number % partitions, null, value), (where, error) -> {
                        if (error == null) {
                            acknowledged.add(value);
                        } else {
                            failure = error;
                        }
                    });
                    try {
                        Thread.sleep(2); // a steady trickle
                    } catch (InterruptedException stop) {
                        return;
                    }
                }
            });
            thread.start();
        }

        void stop() throws Exception {
            running = false;
            thread.join();
            producer.flush();
            if (failure != null) {
                throw failure;
            }
        }

        @Override
        public void close() {
            running = false;
            producer.close();
        }
    }
}
