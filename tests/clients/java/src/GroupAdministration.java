import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListConsumerGroupsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.ConsumerGroupState;

/** What an operator asks of groups, and orders. */
final class GroupAdministration {
    public static Object groupsAreListedDescribedAndDeleted(Cluster cluster) throws Exception {
        Admin admin = cluster.admin;
        String topic = cluster.topic(2);
        TopicPartition zero = new TopicPartition(topic, 0);
        TopicPartition one = new TopicPartition(topic, 1);
        String group = Cluster.fresh("group");
        Map<String, Object> saw = new HashMap<>();
        try (Member member = new Member(cluster.consumer("group.id", group, "client.id", "reader", "group.instance.id", "i"), topic)) {
            Member.untilTheyShare(2, member);
            Cluster.done(admin.alterConsumerGroupOffsets(Cluster.fresh("group"), Map.of(zero, new OffsetAndMetadata(1))).all());
            saw.put("offsets of a live one", Cluster.refusal(
                () -> Cluster.done(admin.alterConsumerGroupOffsets(group, Map.of(zero, new OffsetAndMetadata(1))).all())));
            saw.put("live", shown(described(cluster, group)));
            saw.put("listed", listed(cluster, group));
            saw.put("delete a live one", Cluster.refusal(() -> Cluster.done(admin.deleteConsumerGroups(List.of(group)).all())));
            saw.put("delete offsets in use", Cluster.refusal(
                () -> Cluster.done(admin.deleteConsumerGroupOffsets(group, Set.of(zero)).all())));
        }
        var gone = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("i")));
        Cluster.done(admin.removeMembersFromConsumerGroup(group, gone).all());
        Cluster.until("the group is empty", () -> described(cluster, group).members().isEmpty());
        saw.put("empty", shown(described(cluster, group)));
        Cluster.done(admin.alterConsumerGroupOffsets(group, Map.of(zero, new OffsetAndMetadata(5), one, new OffsetAndMetadata(6))).all());
        saw.put("offsets", offsets(cluster, group));
        Cluster.done(admin.deleteConsumerGroupOffsets(group, Set.of(zero)).all());
        saw.put("one deleted", offsets(cluster, group));
        Cluster.done(admin.deleteConsumerGroups(List.of(group)).all());
        saw.put("deleted", listed(cluster, group));
        saw.put("deleted again", Cluster.refusal(() -> Cluster.done(admin.deleteConsumerGroups(List.of(group)).all())));
        return saw;
    }

    private static ConsumerGroupDescription described(Cluster cluster, String group) throws Exception {
        return Cluster.done(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    @SuppressWarnings({"deprecation", "removal"}) // what both versions have
    private static Object shown(ConsumerGroupDescription group) {
        List<String> members = group.members().stream()
            .map(each -> each.clientId() + " " + each.groupInstanceId().orElse("") + " " + each.assignment().topicPartitions().size())
            .toList();
        return List.of(group.state().toString(), group.partitionAssignor(), members, group.coordinator() != null);
    }

    @SuppressWarnings({"deprecation", "removal"}) // what both versions have
    private static List<String> listed(Cluster cluster, String group) throws Exception {
        var stable = new ListConsumerGroupsOptions().inStates(Set.of(ConsumerGroupState.STABLE));
        List<String> found = new ArrayList<>();
        for (var listing : List.of(cluster.admin.listConsumerGroups(), cluster.admin.listConsumerGroups(stable))) {
            Cluster.done(listing.all()).stream().filter(each -> each.groupId().equals(group))
                .forEach(each -> found.add(each.state().map(Object::toString).orElse("")));
        }
        return found;
    }

    private static Object offsets(Cluster cluster, String group) throws Exception {
        Map<Integer, Long> offsets = new TreeMap<>();
        Cluster.done(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
            .forEach((partition, offset) -> offsets.put(partition.partition(), offset.offset()));
        return offsets;
    }
}
