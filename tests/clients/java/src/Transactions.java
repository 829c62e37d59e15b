import static java.util.concurrent.TimeUnit.SECONDS;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Transactions, from a producer's and a reader's side. */
final class Transactions {
    private static final String COMMITTED = "read_committed";
    private static final String UNCOMMITTED = "read_uncommitted";

    public static Object abortedRecordsAreNeverRead(Cluster cluster) throws Exception {
        String topic = cluster.topic(3);
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", Cluster.fresh("txn"))) {
            producer.initTransactions();
            for (int round = 0; round < 3; round++) {
                producer.beginTransaction();
                Cluster.send(producer, topic, 3, Cluster.numbered("aborted-" + round, 5));
                producer.abortTransaction();
                producer.beginTransaction();
                Cluster.send(producer, topic, 3, Cluster.numbered("committed-" + round, 5));
                producer.commitTransaction();
            }
        }
        return Map.of("committed", cluster.read(topic, COMMITTED, 15), "everything", cluster.read(topic, UNCOMMITTED, 30));
    }

    public static Object aSecondInstanceFencesTheFirst(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String id = Cluster.fresh("txn");
        Map<String, Object> saw = new HashMap<>();
        try (KafkaProducer<String, String> zombie = cluster.producer("transactional.id", id);
                KafkaProducer<String, String> second = cluster.producer("transactional.id", id)) {
            zombie.initTransactions();
            zombie.beginTransaction();
            Cluster.send(zombie, topic, 1, List.of("zombie"));
            second.initTransactions();
            saw.put("commit", Cluster.refusal(zombie::commitTransaction));
            saw.put("begin again", Cluster.refusal(zombie::beginTransaction));
            second.beginTransaction();
            Cluster.send(second, topic, 1, List.of("second"));
            second.commitTransaction();
        }
        saw.put("committed", cluster.read(topic, COMMITTED, 1));
        return saw;
    }

    public static Object aZombieThatOnlySendsIsFenced(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String id = Cluster.fresh("txn");
        Map<String, Object> saw = new HashMap<>();
        try (KafkaProducer<String, String> zombie = cluster.producer("transactional.id", id);
                KafkaProducer<String, String> second = cluster.producer("transactional.id", id)) {
            zombie.initTransactions();
            zombie.beginTransaction();
            Cluster.send(zombie, topic, 1, List.of("zombie-1"));
            second.initTransactions();
            Future<?> late = zombie.send(new ProducerRecord<>(topic, 0, null, "zombie-2"));
            saw.put("send", Cluster.refusal(() -> late.get(30, SECONDS)));
            saw.put("commit", Cluster.refusal(zombie::commitTransaction));
            second.beginTransaction();
            Cluster.send(second, topic, 1, List.of("second"));
            second.commitTransaction();
        }
        saw.put("committed", cluster.read(topic, COMMITTED, 1));
        saw.put("everything", cluster.read(topic, UNCOMMITTED, 2));
        return saw;
    }

    public static Object aTransactionPastItsTimeoutIsAborted(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String id = Cluster.fresh("txn");
        Map<String, Object> saw = new HashMap<>();
        try (KafkaProducer<String, String> late = cluster.producer("transactional.id", id, "transaction.timeout.ms", 3000)) {
            late.initTransactions();
            late.beginTransaction();
            Cluster.send(late, topic, 1, List.of("late"));
            untilAborted(cluster, id);
            saw.put("commit", Cluster.refusal(late::commitTransaction));
        }
        try (KafkaProducer<String, String> next = cluster.producer("transactional.id", id)) {
            next.initTransactions();
            next.beginTransaction();
            Cluster.send(next, topic, 1, List.of("next"));
            next.commitTransaction();
        }
        saw.put("committed", cluster.read(topic, COMMITTED, 1));
        return saw;
    }

    /** The same producer sends on, is refused, aborts, and tries its next transaction. */
    public static Object aProducerThatSendsOnPastItsTimeout(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String id = Cluster.fresh("txn");
        Map<String, Object> saw = new HashMap<>();
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", id, "transaction.timeout.ms", 3000)) {
            producer.initTransactions();
            producer.beginTransaction();
            Cluster.send(producer, topic, 1, List.of("late-1"));
            untilAborted(cluster, id);
            Future<?> late = producer.send(new ProducerRecord<>(topic, 0, null, "late-2"));
            saw.put("send", Cluster.refusal(() -> late.get(30, SECONDS)));
            saw.put("abort", Cluster.refusal(producer::abortTransaction));
            saw.put("begin again", Cluster.refusal(producer::beginTransaction));
            if (saw.get("begin again").equals("")) {
                Cluster.send(producer, topic, 1, List.of("after"));
                producer.commitTransaction();
            }
        }
        saw.put("committed", cluster.read(topic, COMMITTED, saw.get("begin again").equals("") ? 1 : 0));
        return saw;
    }

    private static void untilAborted(Cluster cluster, String id) throws Exception {
        Cluster.until("the coordinator has aborted " + id, () -> Cluster.done(cluster.admin.describeTransactions(List.of(id)).all())
            .get(id).state() == TransactionState.COMPLETE_ABORT);
    }

    public static Object offsetsMoveWithTheOutput(Cluster cluster) throws Exception {
        String source = cluster.topic(2);
        String target = cluster.topic(2);
        String group = Cluster.fresh("group");
        cluster.fill(source, 2, Cluster.numbered("in", 60));
        int transactions = 0;
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group, "max.poll.records", 10);
                KafkaProducer<String, String> producer = cluster.producer("transactional.id", Cluster.fresh("txn"))) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            int done = 0;
            long deadline = System.nanoTime() + Cluster.PATIENCE.toNanos();
            while (done < 60 && System.nanoTime() < deadline) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                boolean commit = transactions++ % 3 != 1;
                Map<TopicPartition, OffsetAndMetadata> read = transform(records, producer, target, commit ? "out" : "aborted");
                producer.sendOffsetsToTransaction(read, consumer.groupMetadata());
                if (commit) {
                    producer.commitTransaction();
                    done += records.count();
                } else {
                    producer.abortTransaction();
                    Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
                    committed.forEach((partition, offset) -> consumer.seek(partition, offset == null ? 0 : offset.offset()));
                }
            }
        }
        var stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
        var offsets = Cluster.done(cluster.admin.listConsumerGroupOffsets(group, stable).partitionsToOffsetAndMetadata());
        Map<Object, Object> committed = new HashMap<>();
        offsets.forEach((partition, offset) -> committed.put(partition.partition(), offset.offset()));
        return Map.of(
            "transactions", transactions, "offsets", committed, "committed", cluster.read(target, COMMITTED, 60));
    }

    /** KIP-447: what the member was told of the group fences it, whatever the transactional id. */
    public static Object aMemberLeftBehindCannotMoveOffsets(Cluster cluster) throws Exception {
        String source = cluster.topic(1);
        String target = cluster.topic(1);
        String group = Cluster.fresh("group");
        cluster.fill(source, 1, Cluster.numbered("in", 5));
        Map<String, Object> saw = new HashMap<>();
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group);
                KafkaProducer<String, String> producer = cluster.producer("transactional.id", Cluster.fresh("txn"))) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            ConsumerRecords<String, String> records = nextRecords(consumer);
            ConsumerGroupMetadata old = consumer.groupMetadata();
            consumer.enforceRebalance("the next generation");
            Cluster.until("the next generation", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.groupMetadata().generationId() > old.generationId();
            });
            saw.put("older generation", sendOffsets(producer, records, target, old));
            ConsumerGroupMetadata member = consumer.groupMetadata();
            consumer.close();
            saw.put("member that left", sendOffsets(producer, records, target, member));
        }
        var none = Cluster.done(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        saw.put("offsets", none.size());
        saw.put("committed", cluster.read(target, COMMITTED, 0));
        return saw;
    }

    private static ConsumerRecords<String, String> nextRecords(KafkaConsumer<String, String> consumer) throws Exception {
        ConsumerRecords<?, ?>[] found = new ConsumerRecords<?, ?>[1];
        Cluster.until("the first records", () -> {
            found[0] = consumer.poll(Duration.ofMillis(100));
            return !found[0].isEmpty();
        });
        @SuppressWarnings("unchecked")
        ConsumerRecords<String, String> records = (ConsumerRecords<String, String>) found[0];
        return records;
    }

    private static String sendOffsets(KafkaProducer<String, String> producer, ConsumerRecords<String, String> records,
            String target, ConsumerGroupMetadata group) {
        Map<TopicPartition, OffsetAndMetadata> read = transform(records, producer, target, "out");
        String refused = Cluster.refusal(() -> producer.sendOffsetsToTransaction(read, group));
        return refused + " " + Cluster.refusal(producer::abortTransaction);
    }

    /** Begins a transaction and writes the output of these records; returns where reading goes on. */
    static Map<TopicPartition, OffsetAndMetadata> transform(ConsumerRecords<String, String> records,
            KafkaProducer<String, String> producer, String target, String prefix) {
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) {
            String output = prefix + record.value().substring(record.value().indexOf('-'));
            producer.send(new ProducerRecord<>(target, record.partition(), record.key(), output));
            next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        return next;
    }
}
