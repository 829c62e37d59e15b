package main

import (
	"context"
	"errors"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/scram"
)

var kafkaGoCases = map[string]testCase{
	"membersShareAndHandOver":                 kafkaGoMembers,
	"committedOffsetsAreFoundByTheNextReader": kafkaGoOffsets,
	"offsetsAreFoundByTime":                   kafkaGoOffsetsByTime,
	"everyCodecPasses":                        kafkaGoCodecs,
	"topicsAreMadeDescribedGrownAndDeleted":   kafkaGoTopics,
	"settingsAreDescribedAndChanged":          kafkaGoSettings,
	"groupsAreListedDescribedAndDeleted":      kafkaGoGroups,
	"aTransactionIsBegunAndEnded":             kafkaGoTransaction,
}

func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func kafkaGoClient(brokers []string) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: patience, Transport: kafkaGoTransport()}
}

func kafkaGoTopic(brokers []string, partitions int) string {
	ctx, cancel := bounded()
	defer cancel()
	topic := fresh("topic")
	answer := got(kafkaGoClient(brokers).CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: topic, NumPartitions: partitions, ReplicationFactor: 3,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "min.insync.replicas", ConfigValue: "2"}},
	}}}))
	must(answer.Errors[topic])
	until("the topic has leaders", func() bool {
		found, err := kafkaGoClient(brokers).Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil || found.Topics[0].Error != nil || len(found.Topics[0].Partitions) != partitions {
			return false
		}
		for _, partition := range found.Topics[0].Partitions {
			if partition.Error != nil {
				return false
			}
		}
		return true
	})
	return topic
}

// It has no OAUTHBEARER.
func kafkaGoMechanism(proof *proofOfIdentity) sasl.Mechanism {
	if proof.Way == "SSL" {
		return nil
	}
	return got(scram.Mechanism(scram.SHA512, proof.Username, proof.Password))
}

// One for all cases: it keeps the connections.
var kafkaGoTransport = sync.OnceValue(func() kafka.RoundTripper {
	proof := security()
	if proof == nil {
		return kafka.DefaultTransport
	}
	return &kafka.Transport{TLS: proof.tls(), SASL: kafkaGoMechanism(proof)}
})

func kafkaGoDialer() *kafka.Dialer {
	proof := security()
	if proof == nil {
		return kafka.DefaultDialer
	}
	return &kafka.Dialer{Timeout: patience, DualStack: true, TLS: proof.tls(), SASLMechanism: kafkaGoMechanism(proof)}
}

type byNumber struct{}

func (byNumber) Balance(message kafka.Message, partitions ...int) int {
	return partitions[int(message.Key[0])%len(partitions)]
}

func kafkaGoFill(brokers []string, topic string, codec kafka.Compression, values []string) {
	ctx, cancel := bounded()
	defer cancel()
	writer := &kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec,
		BatchTimeout: 10 * time.Millisecond, Balancer: byNumber{}, MaxAttempts: 20,
		Transport: kafkaGoTransport(),
	}
	batch := make([]kafka.Message, len(values))
	for number, value := range values {
		batch[number] = kafka.Message{Key: []byte{byte(number)}, Value: []byte(value)}
	}
	must(writer.WriteMessages(ctx, batch...))
	must(writer.Close())
}

func kafkaGoReader(brokers []string, group, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: brokers, GroupID: group, Topic: topic, MaxWait: 100 * time.Millisecond, HeartbeatInterval: 300 * time.Millisecond,
		StartOffset: kafka.FirstOffset, IsolationLevel: kafka.ReadCommitted, ReadBatchTimeout: 2 * time.Second,
		Dialer: kafkaGoDialer(),
	})
}

func kafkaGoRead(brokers []string, topic string, partition, count int) []string {
	ctx, cancel := bounded()
	defer cancel()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: brokers, Topic: topic, Partition: partition, MaxWait: 100 * time.Millisecond, IsolationLevel: kafka.ReadCommitted,
		Dialer: kafkaGoDialer(),
	})
	defer reader.Close()
	must(reader.SetOffset(kafka.FirstOffset))
	values := []string{}
	for range count {
		values = append(values, string(got(reader.ReadMessage(ctx)).Value))
	}
	return values
}

// The partitions of each member, from the group's description.
func kafkaGoShares(brokers []string, group string) (state string, parts []int) {
	ctx, cancel := bounded()
	defer cancel()
	answer, err := kafkaGoClient(brokers).DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil || answer.Groups[0].Error != nil {
		return "", nil
	}
	for _, each := range answer.Groups[0].Members {
		total := 0
		for _, topic := range each.MemberAssignments.Topics {
			total += len(topic.Partitions)
		}
		parts = append(parts, total)
	}
	sort.Ints(parts)
	return answer.Groups[0].GroupState, parts
}

func kafkaGoMembers(brokers []string) seen {
	topic, group := kafkaGoTopic(brokers, 4), fresh("group")
	parts := []int{}
	share := func(members int) {
		until("the members share all partitions", func() bool {
			state, shared := kafkaGoShares(brokers, group)
			if state != "Stable" || len(shared) != members {
				return false
			}
			total := 0
			for _, part := range shared {
				total += part
			}
			if total == 4 {
				parts = append(parts, shared...)
			}
			return total == 4
		})
	}
	one := kafkaGoReader(brokers, group, topic)
	share(1)
	two := kafkaGoReader(brokers, group, topic)
	share(2)
	must(one.Close())
	share(1)
	must(two.Close())
	return seen{"parts": parts}
}

func kafkaGoOffsets(brokers []string) seen {
	ctx, cancel := bounded()
	defer cancel()
	topic, group := kafkaGoTopic(brokers, 2), fresh("group")
	kafkaGoFill(brokers, topic, 0, numbered("value", 20))
	first := kafkaGoReader(brokers, group, topic)
	done := map[string]bool{}
	for len(done) < 8 {
		message := got(first.FetchMessage(ctx))
		must(first.CommitMessages(ctx, message))
		done[string(message.Value)] = true
	}
	must(first.Close())
	next := kafkaGoReader(brokers, group, topic)
	again := 0
	rest := map[string]bool{}
	for len(rest) < 12 {
		message := got(next.FetchMessage(ctx))
		if done[string(message.Value)] {
			again++
		}
		rest[string(message.Value)] = true
	}
	must(next.Close())
	return seen{"read again": again, "rest": len(rest)}
}

func kafkaGoOffsetsByTime(brokers []string) seen {
	ctx, cancel := bounded()
	defer cancel()
	topic := kafkaGoTopic(brokers, 1)
	kafkaGoFill(brokers, topic, 0, numbered("value", 10))
	answer := got(kafkaGoClient(brokers).ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: {kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0), kafka.TimeOffsetOf(0, time.UnixMilli(1))},
	}}))
	partition := answer.Topics[topic][0]
	must(partition.Error)
	times := []int64{}
	for offset := range partition.Offsets {
		times = append(times, offset)
	}
	return seen{"first": partition.FirstOffset, "last": partition.LastOffset, "by time": times}
}

func kafkaGoCodecs(brokers []string) seen {
	saw := seen{}
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		topic := kafkaGoTopic(brokers, 1)
		kafkaGoFill(brokers, topic, codec, numbered("value", 50))
		values := kafkaGoRead(brokers, topic, 0, 50)
		name := "none"
		if codec != 0 {
			name = codec.String()
		}
		saw[name] = values[0] == "value-000" && values[49] == "value-049"
	}
	return saw
}

func kafkaGoTopics(brokers []string) seen {
	ctx, cancel := bounded()
	defer cancel()
	client, topic := kafkaGoClient(brokers), kafkaGoTopic(brokers, 2)
	again := got(client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}},
	}))
	grown := got(client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 5}},
	}))
	must(grown.Errors[topic])
	until("the topic has grown", func() bool {
		found := got(client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}}))
		return len(found.Topics[0].Partitions) == 5
	})
	deleted := got(client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}}))
	must(deleted.Errors[topic])
	until("the topic is gone", func() bool {
		answer := got(client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}}))
		return errors.Is(answer.Errors[topic], kafka.UnknownTopicOrPartition)
	})
	return seen{"made again": errors.Is(again.Errors[topic], kafka.TopicAlreadyExists)}
}

func kafkaGoSettings(brokers []string) seen {
	ctx, cancel := bounded()
	defer cancel()
	client, topic := kafkaGoClient(brokers), kafkaGoTopic(brokers, 1)
	setting := func() string {
		answer := got(client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
			{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"}},
		}}))
		must(answer.Resources[0].Error)
		return answer.Resources[0].ConfigEntries[0].ConfigValue
	}
	saw := seen{"default": setting()}
	edit := func(value string) error {
		answer := got(client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
			Resources: []kafka.IncrementalAlterConfigsRequestResource{{
				ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
				Configs: []kafka.IncrementalAlterConfigsRequestConfig{
					{Name: "retention.ms", Value: value, ConfigOperation: kafka.ConfigOperationSet},
				},
			}},
		}))
		return answer.Resources[0].Error
	}
	must(edit("3600000"))
	until("the change is seen", func() bool { return setting() == "3600000" })
	saw["bad value"] = strings.Contains(refusal(edit("soon")), "Invalid")
	return saw
}

func kafkaGoGroups(brokers []string) seen {
	ctx, cancel := bounded()
	defer cancel()
	client, topic, group := kafkaGoClient(brokers), kafkaGoTopic(brokers, 1), fresh("group")
	reader := kafkaGoReader(brokers, group, topic)
	until("the group is stable", func() bool { state, _ := kafkaGoShares(brokers, group); return state == "Stable" })
	listed := func() bool {
		for _, each := range got(client.ListGroups(ctx, &kafka.ListGroupsRequest{})).Groups {
			if each.GroupID == group {
				return true
			}
		}
		return false
	}
	remove := func() error {
		answer := got(client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}}))
		return answer.Errors[group]
	}
	live := errors.Is(remove(), kafka.NonEmptyGroup)
	coordinator := got(client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: group, KeyType: kafka.CoordinatorKeyTypeConsumer}))
	must(reader.Close())
	until("the group is deleted", func() bool { err := remove(); return err == nil || errors.Is(err, kafka.GroupIdNotFound) })
	return seen{"delete a live one": live, "a coordinator": coordinator.Coordinator.NodeID >= 1, "listed after that": listed()}
}

// kafka-go has the requests of transactions, but no producer that writes under them.
func kafkaGoTransaction(brokers []string) seen {
	ctx, cancel := bounded()
	defer cancel()
	client, topic, group, id := kafkaGoClient(brokers), kafkaGoTopic(brokers, 1), fresh("group"), fresh("txn")
	var producer *kafka.ProducerSession
	until("the coordinator has given an identity", func() bool {
		answer, err := client.InitProducerID(ctx, &kafka.InitProducerIDRequest{TransactionalID: id, TransactionTimeoutMs: 10_000})
		if err == nil && answer.Error == nil {
			producer = answer.Producer
		}
		return producer != nil
	})
	added := got(client.AddPartitionsToTxn(ctx, &kafka.AddPartitionsToTxnRequest{
		TransactionalID: id, ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch,
		Topics: map[string][]kafka.AddPartitionToTxn{topic: {{Partition: 0}}},
	}))
	must(added.Topics[topic][0].Error)
	offsets := got(client.AddOffsetsToTxn(ctx, &kafka.AddOffsetsToTxnRequest{
		TransactionalID: id, ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, GroupID: group,
	}))
	must(offsets.Error)
	committed := got(client.TxnOffsetCommit(ctx, &kafka.TxnOffsetCommitRequest{
		TransactionalID: id, GroupID: group, ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, GenerationID: -1,
		Topics: map[string][]kafka.TxnOffsetCommit{topic: {{Partition: 0, Offset: 7}}},
	}))
	must(committed.Topics[topic][0].Error)
	foreign := got(client.EndTxn(ctx, &kafka.EndTxnRequest{
		TransactionalID: id, ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch - 1, Committed: true,
	}))
	ended := got(client.EndTxn(ctx, &kafka.EndTxnRequest{
		TransactionalID: id, ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, Committed: true,
	}))
	must(ended.Error)
	offset := int64(-1)
	until("the offset is committed", func() bool {
		found := got(client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: {0}}}))
		if found.Error == nil && len(found.Topics[topic]) == 1 {
			offset = found.Topics[topic][0].CommittedOffset
		}
		return offset >= 0
	})
	return seen{"offset": offset, "an older epoch is refused": foreign.Error != nil}
}
