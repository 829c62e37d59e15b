import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

/** Offsets: kept for a group, found by time, and where a reader begins that has none. */
final class Offsets {
    private static final String COMMITTED = "read_committed";

    public static Object committedOffsetsAreFoundByTheNextReader(Cluster cluster) throws Exception {
        String topic = cluster.topic(2);
        String group = Cluster.fresh("group");
        TopicPartition zero = new TopicPartition(topic, 0);
        TopicPartition one = new TopicPartition(topic, 1);
        cluster.fill(topic, 2, Cluster.numbered("value", 20));
        Map<String, Object> saw = new HashMap<>();
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group)) {
            consumer.assign(List.of(zero, one));
            Map<TopicPartition, OffsetAndMetadata> none = consumer.committed(Set.of(zero, one));
            saw.put("before", Arrays.asList(none.get(zero), none.get(one)));
            consumer.commitSync(Map.of(zero, new OffsetAndMetadata(3, "half way")));
            CompletableFuture<String> answered = new CompletableFuture<>();
            consumer.commitAsync(Map.of(one, new OffsetAndMetadata(7)), (offsets, error) -> answered.complete("" + error));
            Cluster.until("the asynchronous commit is answered", () -> {
                consumer.poll(Duration.ofMillis(20));
                return answered.isDone();
            });
            saw.put("asynchronous", answered.get(1, TimeUnit.SECONDS));
        }
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group)) {
            consumer.assign(List.of(zero, one));
            Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(Set.of(zero, one));
            saw.put("offsets", List.of(found.get(zero).offset(), found.get(one).offset()));
            saw.put("metadata", found.get(zero).metadata());
            saw.put("positions", List.of(consumer.position(zero), consumer.position(one)));
            List<String> values = new ArrayList<>();
            Cluster.until("the rest is read", () -> {
                values.addAll(Cluster.values(consumer));
                return values.size() >= 10;
            });
            saw.put("rest", values.size());
        }
        return saw;
    }

    /** With no offset, and with one that DeleteRecords has taken away. */
    public static Object aReaderWithoutAnOffsetIsReset(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        cluster.fill(topic, 1, Cluster.numbered("value", 10));
        Map<String, Object> saw = new HashMap<>();
        for (String policy : List.of("earliest", "latest", "none")) {
            saw.put(policy, whereItBegins(cluster, policy, partition, -1));
        }
        Cluster.done(cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).all());
        for (String policy : List.of("earliest", "latest", "none")) {
            saw.put(policy + " out of range", whereItBegins(cluster, policy, partition, 2));
        }
        return saw;
    }

    /** The position after records could have come, or what the client throws. */
    private static Object whereItBegins(Cluster cluster, String policy, TopicPartition partition, long from) throws Exception {
        Object[] settings = {"group.id", Cluster.fresh("group"), "auto.offset.reset", policy, "max.poll.records", 1};
        try (KafkaConsumer<String, String> consumer = cluster.consumer(settings)) {
            consumer.assign(List.of(partition));
            if (from >= 0) {
                consumer.seek(partition, from);
            }
            long[] first = {-1};
            String refused = Cluster.refusal(() -> Cluster.until("a record, or the end", () -> {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                    first[0] = record.offset();
                    return true;
                }
                return consumer.position(partition) == 10;
            }));
            return refused.isEmpty() ? (first[0] >= 0 ? first[0] : consumer.position(partition)) : refused;
        }
    }

    public static Object offsetsAreFoundByTime(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (int number = 0; number < 10; number++) {
                long time = number == 5 ? 9_000_000 : 1_000_000 + number * 1000L; // the sixth is the newest
                producer.send(new ProducerRecord<>(topic, 0, time, null, "value-" + number)).get(30, TimeUnit.SECONDS);
            }
        }
        Map<String, Object> saw = new HashMap<>();
        try (KafkaConsumer<String, String> consumer = cluster.consumer()) {
            for (long time : List.of(0L, 1_003_000L, 1_003_001L, 1_009_000L, 9_000_001L)) {
                var found = consumer.offsetsForTimes(Map.of(partition, time)).get(partition);
                saw.put("" + time, found == null ? "none" : found.offset() + "@" + found.timestamp());
            }
        }
        var newest = Cluster.done(cluster.admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all()).get(partition);
        saw.put("newest", newest.offset() + "@" + newest.timestamp());
        return saw;
    }

    /** An open transaction: what is behind its first record is not there for a reader of committed records. */
    public static Object theEndDependsOnTheIsolation(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        cluster.fill(topic, 1, Cluster.numbered("before", 3));
        Map<String, Object> saw = new HashMap<>();
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", Cluster.fresh("txn"))) {
            producer.initTransactions();
            producer.beginTransaction();
            Cluster.send(producer, topic, 1, Cluster.numbered("open", 2));
            cluster.fill(topic, 1, Cluster.numbered("behind", 1));
            saw.put("open", ends(cluster, partition));
            producer.commitTransaction();
        }
        saw.put("committed", cluster.read(topic, COMMITTED, 6));
        saw.put("decided", ends(cluster, partition));
        return saw;
    }

    private static Object ends(Cluster cluster, TopicPartition partition) throws Exception {
        List<Long> ends = new ArrayList<>();
        for (IsolationLevel level : List.of(IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)) {
            var asked = cluster.admin.listOffsets(Map.of(partition, OffsetSpec.latest()), new ListOffsetsOptions(level));
            ends.add(Cluster.done(asked.all()).get(partition).offset());
        }
        var first = cluster.admin.listOffsets(Map.of(partition, OffsetSpec.earliest()));
        ends.add(Cluster.done(first.all()).get(partition).offset());
        return ends;
    }
}
