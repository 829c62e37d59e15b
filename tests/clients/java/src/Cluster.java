import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The cluster under test: clients of it, and what several cases ask of it. */
final class Cluster implements AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final Duration POLL = Duration.ofMillis(100);

    final String bootstrap;
    final Admin admin;

    Cluster(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(with(Map.of("bootstrap.servers", bootstrap)));
    }

    @Override
    public void close() {
        admin.close(Duration.ofSeconds(5));
    }

    /** A name that nobody had before. */
    static String fresh(String what) {
        return "java-" + what + "-" + UUID.randomUUID();
    }

    /** A new topic of three replicas. */
    String topic(int partitions) throws Exception {
        return topic(partitions, Map.of());
    }

    String topic(int partitions, Map<String, String> settings) throws Exception {
        String name = fresh("topic");
        Map<String, String> all = new HashMap<>(settings);
        all.putIfAbsent("min.insync.replicas", "2");
        done(admin.createTopics(List.of(new NewTopic(name, Optional.of(partitions), Optional.of((short) 3)).configs(all))).all());
        return name;
    }

    KafkaProducer<String, String> producer(Object... settings) {
        Map<String, Object> all = with(Map.of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", "5"));
        put(all, settings);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    /** Without a reset policy of its own it begins at the first record; it hears of a rebalance soon. */
    KafkaConsumer<String, String> consumer(Object... settings) {
        Map<String, Object> all = with(Map.of(
            "bootstrap.servers", bootstrap,
            "enable.auto.commit", "false",
            "heartbeat.interval.ms", "300",
            "auto.offset.reset", "earliest",
            "isolation.level", "read_committed"));
        put(all, settings);
        if ("consumer".equals(all.get("group.protocol"))) {
            all.remove("heartbeat.interval.ms"); // the coordinator says it
        }
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    /** And what every client has: the properties of the file that the environment names, if it does. */
    private static Map<String, Object> with(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>();
        String file = System.getenv("CLIENT_PROPERTIES");
        if (file != null) {
            try (java.io.Reader reader = java.nio.file.Files.newBufferedReader(java.nio.file.Path.of(file))) {
                java.util.Properties properties = new java.util.Properties();
                properties.load(reader);
                properties.forEach((name, value) -> all.put((String) name, value));
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
        all.putAll(settings);
        return all;
    }

    private static void put(Map<String, Object> all, Object... settings) {
        for (int i = 0; i < settings.length; i += 2) {
            all.put((String) settings[i], settings[i + 1]);
        }
    }

    /** Sends the values to one partition after the other and waits for the acknowledgements. */
    static void send(KafkaProducer<String, String> producer, String topic, int partitions, Collection<String> values)
            throws Exception {
        List<java.util.concurrent.Future<?>> sent = new ArrayList<>();
        int next = 0;
        for (String value : values) {
            sent.add(producer.send(new ProducerRecord<>(topic, next++ % partitions, value, value)));
        }
        producer.flush();
        for (var each : sent) {
            each.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
    }

    /** Sends without a transaction. */
    void fill(String topic, int partitions, Collection<String> values) throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            send(producer, topic, partitions, values);
        }
    }

    /** What a reader gets: at least so many records, and everything up to the end that the broker names then. */
    List<String> read(String topic, String isolation, int count) throws Exception {
        try (KafkaConsumer<String, String> reader = consumer("isolation.level", isolation)) {
            List<TopicPartition> all =
                reader.partitionsFor(topic).stream().map(each -> new TopicPartition(topic, each.partition())).toList();
            reader.assign(all);
            reader.seekToBeginning(all);
            List<String> values = new ArrayList<>();
            until(count + " records of " + topic + " are read", () -> {
                values.addAll(values(reader));
                return values.size() >= count;
            });
            Map<TopicPartition, Long> ends = reader.endOffsets(all);
            until("the end of " + topic + " is reached", () -> {
                values.addAll(values(reader));
                return all.stream().allMatch(each -> reader.position(each) >= ends.get(each));
            });
            return values.stream().sorted().toList();
        }
    }

    static List<String> values(KafkaConsumer<String, String> consumer) {
        List<String> values = new ArrayList<>();
        consumer.poll(POLL).forEach((ConsumerRecord<String, String> each) -> values.add(each.value()));
        return values;
    }

    static List<String> numbered(String what, int count) {
        return IntStream.range(0, count).mapToObj(number -> "%s-%03d".formatted(what, number)).toList();
    }

    static <T> T done(KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }

    /** Waits until the condition holds. */
    static void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException("not within " + PATIENCE.toSeconds() + " s: " + what);
            }
            Thread.sleep(10);
        }
    }

    /** The simple name of what the action throws, "" when it succeeds. The cause counts where the client wraps it. */
    static String refusal(Action action) {
        try {
            action.run();
            return "";
        } catch (java.util.concurrent.ExecutionException wrapped) {
            return wrapped.getCause().getClass().getSimpleName();
        } catch (Exception refused) {
            return refused.getClass().getSimpleName();
        }
    }

    interface Action {
        void run() throws Exception;
    }
}
