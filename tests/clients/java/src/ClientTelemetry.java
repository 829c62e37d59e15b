import java.io.InputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.config.ConfigResource;

/** What a client says of itself when it is asked to (KIP-714), as Java clients do by default. */
final class ClientTelemetry {
    private static final Duration FOR_ONE_PRODUCER = Duration.ofSeconds(5);

    /** The test has seen the metrics when there is a topic of the client's name. */
    public static Object whatAProducerPushesIsOnThePageForPrometheus(Cluster cluster) throws Exception {
        String id = "pushes-" + version();
        ConfigResource subscription = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, id);
        Cluster.done(cluster.admin.incrementalAlterConfigs(Map.of(subscription, List.of(
            set("metrics", "org.apache.kafka.producer."), set("interval.ms", "200"), set("match", "client_id=" + id)))).all());
        String topic = cluster.topic(1);
        List<String> instances = new ArrayList<>();
        while (instances.isEmpty() || !Cluster.done(cluster.admin.listTopics().names()).contains(id)) {
            if (instances.size() == 12) {
                throw new IllegalStateException("no metrics of " + id + " were seen");
            }
            try (var producer = cluster.producer("client.id", id)) { // a new one: it may have asked a node that did not know yet
                Cluster.send(producer, topic, 1, Cluster.numbered("value", 10));
                instances.add(producer.clientInstanceId(Cluster.PATIENCE).toString());
                long deadline = System.nanoTime() + FOR_ONE_PRODUCER.toNanos();
                while (System.nanoTime() < deadline && !Cluster.done(cluster.admin.listTopics().names()).contains(id)) {
                    Thread.sleep(100);
                }
            }
        }
        return Map.of("instances", instances);
    }

    private static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    private static String version() throws Exception {
        Properties found = new Properties();
        try (InputStream file = KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            found.load(file);
        }
        return found.getProperty("version");
    }
}
