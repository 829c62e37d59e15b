import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;

/** What an operator asks of transactions, and orders. */
final class TransactionAdministration {
    public static Object transactionsAndProducersAreDescribed(Cluster cluster) throws Exception {
        Admin admin = cluster.admin;
        String topic = cluster.topic(2);
        TopicPartition zero = new TopicPartition(topic, 0);
        String id = Cluster.fresh("txn");
        Map<String, Object> saw = new HashMap<>();
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", id, "transaction.timeout.ms", 45000)) {
            producer.initTransactions();
            saw.put("new", described(admin, id).state().toString());
            producer.beginTransaction();
            Cluster.send(producer, topic, 2, Cluster.numbered("open", 4));
            TransactionDescription open = described(admin, id);
            saw.put("open", List.of(open.state().toString(), open.transactionTimeoutMs(), open.topicPartitions().size()));
            saw.put("started", open.transactionStartTimeMs().isPresent());
            List<ProducerState> producers = Cluster.done(admin.describeProducers(List.of(zero)).all()).get(zero).activeProducers();
            saw.put("producers", producers.stream().map(
                each -> List.of(each.producerId() == open.producerId(), each.producerEpoch() == open.producerEpoch(),
                    each.lastSequence(), each.currentTransactionStartOffset().orElse(-1))).toList());
            saw.put("listed open", listed(admin, id, new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING))));
            saw.put("listed of this producer", listed(
                admin, id, new ListTransactionsOptions().filterProducerIds(Set.of(open.producerId()))));
            saw.put("listed older than an hour", listed(admin, id, new ListTransactionsOptions().filterOnDuration(3_600_000)));
            producer.commitTransaction();
            Cluster.until("the commit is complete", () -> described(admin, id).state() == TransactionState.COMPLETE_COMMIT);
            saw.put("listed", listed(admin, id, new ListTransactionsOptions()));
        }
        saw.put("no such id", Cluster.refusal(() -> described(admin, Cluster.fresh("txn"))));
        return saw;
    }

    private static TransactionDescription described(Admin admin, String id) throws Exception {
        return Cluster.done(admin.describeTransactions(List.of(id)).all()).get(id);
    }

    private static List<String> listed(Admin admin, String id, ListTransactionsOptions options) throws Exception {
        List<String> states = new ArrayList<>();
        for (TransactionListing each : Cluster.done(admin.listTransactions(options).all())) {
            if (each.transactionalId().equals(id)) {
                states.add(each.state().toString());
            }
        }
        return states;
    }

    public static Object producersAreFencedByTheOperator(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String id = Cluster.fresh("txn");
        Map<String, Object> saw = new HashMap<>();
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", id)) {
            producer.initTransactions();
            producer.beginTransaction();
            Cluster.send(producer, topic, 1, List.of("fenced"));
            Cluster.done(cluster.admin.fenceProducers(List.of(id)).all());
            saw.put("commit", Cluster.refusal(producer::commitTransaction));
        }
        cluster.fill(topic, 1, List.of("plain"));
        saw.put("committed", cluster.read(topic, "read_committed", 1));
        return saw;
    }

    /** At one partition, past the coordinator: for a transaction that hangs. */
    public static Object aTransactionIsAbortedByTheOperator(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", Cluster.fresh("txn"))) {
            producer.initTransactions();
            producer.beginTransaction();
            Cluster.send(producer, topic, 1, List.of("hanging"));
            cluster.fill(topic, 1, List.of("plain"));
            var open = Cluster.done(cluster.admin.describeProducers(List.of(partition)).all()).get(partition).activeProducers().stream()
                .filter(each -> each.currentTransactionStartOffset().isPresent()).findFirst().orElseThrow();
            var which = new AbortTransactionSpec(
                partition, open.producerId(), (short) open.producerEpoch(), open.coordinatorEpoch().orElse(0));
            String aborted = Cluster.refusal(() -> Cluster.done(cluster.admin.abortTransaction(which).all()));
            return Map.of("aborted", aborted, "committed", cluster.read(topic, "read_committed", 1));
        }
    }
}
