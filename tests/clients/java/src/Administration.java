import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** What an operator asks of topics, settings and nodes, and orders. */
final class Administration {
    public static Object topicsAreMadeDescribedGrownAndDeleted(Cluster cluster) throws Exception {
        Admin admin = cluster.admin;
        String name = Cluster.fresh("topic");
        NewTopic wanted = new NewTopic(name, Optional.of(2), Optional.of((short) 3));
        Map<String, Object> saw = new HashMap<>();
        Cluster.done(admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true)).all());
        saw.put("only tried", Cluster.refusal(() -> Cluster.done(admin.describeTopics(List.of(name)).allTopicNames())));
        var made = admin.createTopics(List.of(wanted));
        saw.put("made", List.of(Cluster.done(made.numPartitions(name)), Cluster.done(made.replicationFactor(name))));
        saw.put("made again", Cluster.refusal(() -> Cluster.done(admin.createTopics(List.of(wanted)).all())));
        saw.put("bad name", refusedTopic(cluster, new NewTopic("bad name!", 1, (short) 1)));
        saw.put("nine replicas", refusedTopic(cluster, new NewTopic(Cluster.fresh("topic"), 1, (short) 9)));
        saw.put("no partitions", refusedTopic(cluster, new NewTopic(Cluster.fresh("topic"), 0, (short) 1)));
        saw.put("bad setting", refusedTopic(
            cluster, new NewTopic(Cluster.fresh("topic"), 1, (short) 1).configs(Map.of("segment.bytes", "many"))));
        Cluster.done(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(4))).all());
        saw.put("fewer", Cluster.refusal(() -> Cluster.done(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all())));
        Cluster.until("every node knows the new partitions, in sync", () -> {
            var partitions = described(admin, name).partitions();
            return partitions.size() == 4 && partitions.stream().allMatch(each -> each.leader() != null && each.isr().size() == 3);
        });
        TopicDescription described = described(admin, name);
        TopicCollection.TopicIdCollection id = TopicCollection.ofTopicIds(List.of(described.topicId()));
        saw.put("name by its id", Cluster.done(admin.describeTopics(id).allTopicIds()).get(described.topicId()).name().equals(name));
        Cluster.until("the topic is listed", () -> Cluster.done(admin.listTopics().names()).contains(name));
        Cluster.done(admin.deleteTopics(id).all());
        Cluster.until("the topic is gone", () -> !Cluster.done(admin.listTopics().names()).contains(name));
        saw.put("deleted again", Cluster.refusal(() -> Cluster.done(admin.deleteTopics(List.of(name)).all())));
        return saw;
    }

    private static TopicDescription described(Admin admin, String name) throws Exception {
        return Cluster.done(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
    }

    private static String refusedTopic(Cluster cluster, NewTopic topic) {
        return Cluster.refusal(() -> Cluster.done(cluster.admin.createTopics(List.of(topic)).all()));
    }

    public static Object settingsAreSetAppendedSubtractedAndTakenBack(Cluster cluster) throws Exception {
        String topic = cluster.topic(1, Map.of("retention.ms", "3600000"));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, Object> saw = new HashMap<>();
        saw.put("made", shown(cluster, resource, "delete", "3600000", "1073741824"));
        alter(cluster, resource, false, OpType.SET, "segment.bytes", "1048576");
        alter(cluster, resource, false, OpType.APPEND, "cleanup.policy", "compact");
        saw.put("set and appended", shown(cluster, resource, "delete,compact", "3600000", "1048576"));
        alter(cluster, resource, false, OpType.SUBTRACT, "cleanup.policy", "delete");
        alter(cluster, resource, false, OpType.DELETE, "retention.ms", null);
        alter(cluster, resource, true, OpType.SET, "segment.bytes", "2097152");
        saw.put("subtracted, taken back, only tried", shown(cluster, resource, "compact", "604800000", "1048576"));
        saw.put("bad value", Cluster.refusal(() -> alter(cluster, resource, false, OpType.SET, "segment.bytes", "-5")));
        saw.put("no such setting", Cluster.refusal(() -> alter(cluster, resource, false, OpType.SET, "no.such.setting", "1")));
        ConfigResource nowhere = new ConfigResource(ConfigResource.Type.TOPIC, Cluster.fresh("nowhere"));
        saw.put("no such topic", Cluster.refusal(() -> config(cluster, nowhere)));
        Config broker = config(cluster, new ConfigResource(ConfigResource.Type.BROKER, "1"));
        saw.put("a broker's", broker.get("transaction.max.timeout.ms").value());
        return saw;
    }

    private static Config config(Cluster cluster, ConfigResource resource) throws Exception {
        return Cluster.done(cluster.admin.describeConfigs(List.of(resource)).all()).get(resource);
    }

    /** Where the settings come from, once the node that is asked knows these values: any node may be asked, and some lag. */
    private static Map<String, String> shown(Cluster cluster, ConfigResource resource, String policy, String retention, String size)
            throws Exception {
        Map<String, String> wanted = Map.of("cleanup.policy", policy, "retention.ms", retention, "segment.bytes", size);
        Map<String, String> sources = new TreeMap<>();
        Cluster.until("the settings are " + wanted, () -> {
            Config config = config(cluster, resource);
            wanted.keySet().forEach(name -> sources.put(name, config.get(name).source().toString()));
            return wanted.entrySet().stream().allMatch(each -> config.get(each.getKey()).value().equals(each.getValue()));
        });
        return sources;
    }

    private static void alter(Cluster cluster, ConfigResource resource, boolean onlyTry, OpType operation, String name, String value)
            throws Exception {
        Map<ConfigResource, Collection<AlterConfigOp>> change =
            Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), operation)));
        Cluster.done(cluster.admin.incrementalAlterConfigs(change, new AlterConfigsOptions().validateOnly(onlyTry)).all());
    }

    public static Object recordsAreDeleted(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        cluster.fill(topic, 1, Cluster.numbered("value", 10));
        Map<String, Object> saw = new HashMap<>();
        saw.put("low watermark", deleteBefore(cluster, partition, 4));
        saw.put("read", cluster.read(topic, "read_committed", 6));
        saw.put("beyond the end", Cluster.refusal(() -> deleteBefore(cluster, partition, 11)));
        saw.put("all of them", deleteBefore(cluster, partition, -1));
        return saw;
    }

    private static long deleteBefore(Cluster cluster, TopicPartition partition, long offset) throws Exception {
        var deleted = cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset)));
        return Cluster.done(deleted.lowWatermarks().get(partition)).lowWatermark();
    }

    public static Object theClusterIsDescribed(Cluster cluster) throws Exception {
        Map<String, Object> saw = new HashMap<>();
        var described = cluster.admin.describeCluster();
        List<Integer> nodes = Cluster.done(described.nodes()).stream().map(Node::id).sorted().toList();
        saw.put("nodes", nodes);
        saw.put("the controller is one of them", nodes.contains(Cluster.done(described.controller()).id()));
        saw.put("cluster id", Cluster.done(described.clusterId()));
        var features = Cluster.done(cluster.admin.describeFeatures().featureMetadata()).finalizedFeatures();
        saw.put("transaction.version", features.get("transaction.version").maxVersionLevel());
        var folders = Cluster.done(cluster.admin.describeLogDirs(nodes).allDescriptions());
        saw.put("folders", folders.values().stream().allMatch(
            each -> !each.isEmpty() && each.values().stream().allMatch(folder -> folder.error() == null)));
        var quorum = Cluster.done(cluster.admin.describeMetadataQuorum().quorumInfo());
        List<Integer> voters = quorum.voters().stream().map(QuorumInfo.ReplicaState::replicaId).sorted().toList();
        saw.put("voters", voters);
        saw.put("the quorum's leader is one of them", voters.contains(quorum.leaderId()));
        return saw;
    }

    public static Object replicasMoveAndLeadersAreElected(Cluster cluster) throws Exception {
        Admin admin = cluster.admin;
        String topic = cluster.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        cluster.fill(topic, 1, Cluster.numbered("value", 20));
        Map<String, Object> saw = new HashMap<>();
        List<Integer> replicas = replicas(admin, topic);
        int first = replicas.get(0);
        int second = replicas.get(1);
        int third = replicas.get(2);
        move(cluster, partition, List.of(third, second));
        Cluster.until("a replica that is left leads", () -> leader(admin, topic) != first);
        move(cluster, partition, List.of(third, second, first));
        move(cluster, partition, List.of(second, third, first));
        saw.put("unknown node", Cluster.refusal(() -> Cluster.done(admin.alterPartitionReassignments(
            Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(1, 99))))).all())));
        saw.put("nothing to cancel", Cluster.refusal(
            () -> Cluster.done(admin.alterPartitionReassignments(Map.of(partition, Optional.empty())).all())));
        var elected = Cluster.done(admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions()).get(partition);
        saw.put("elected", elected.map(error -> error.getClass().getSimpleName()).orElse(""));
        Cluster.until("the first replica leads", () -> leader(admin, topic) == second);
        var again = Cluster.done(admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions()).get(partition);
        saw.put("elected again", again.map(error -> error.getClass().getSimpleName()).orElse(""));
        saw.put("values", cluster.read(topic, "read_committed", 20).size());
        return saw;
    }

    private static void move(Cluster cluster, TopicPartition partition, List<Integer> replicas) throws Exception {
        Cluster.done(cluster.admin.alterPartitionReassignments(
            Map.of(partition, Optional.of(new NewPartitionReassignment(replicas)))).all());
        Cluster.until("the move is done", () -> Cluster.done(cluster.admin.listPartitionReassignments().reassignments())
            .get(partition) == null && replicas(cluster.admin, partition.topic()).equals(replicas)
            && new TreeSet<>(isr(cluster.admin, partition.topic())).equals(new TreeSet<>(replicas)));
    }

    private static List<Integer> replicas(Admin admin, String topic) throws Exception {
        return described(admin, topic).partitions().get(0).replicas().stream().map(Node::id).toList();
    }

    private static List<Integer> isr(Admin admin, String topic) throws Exception {
        return described(admin, topic).partitions().get(0).isr().stream().map(Node::id).toList();
    }

    private static int leader(Admin admin, String topic) throws Exception {
        Node leader = described(admin, topic).partitions().get(0).leader();
        return leader == null ? -1 : leader.id();
    }
}
