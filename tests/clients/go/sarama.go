package main

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

var saramaCases = map[string]testCase{
	"abortedRecordsAreNeverRead":              saramaAborted,
	"aSecondInstanceFencesTheFirst":           saramaFencing,
	"offsetsMoveWithTheOutput":                saramaTransform,
	"membersShareAndHandOver":                 saramaMembers,
	"aStaticMemberKeepsItsPartitions":         saramaStatic,
	"committedOffsetsAreFoundByTheNextReader": saramaOffsets,
	"offsetsAreFoundByTime":                   saramaOffsetsByTime,
	"everyCodecPasses":                        saramaCodecs,
	"topicsAreMadeDescribedGrownAndDeleted":   saramaTopics,
	"settingsAreDescribedAndChanged":          saramaSettings,
	"groupsAreListedDescribedAndDeleted":      saramaGroups,
	"recordsAreDeleted":                       saramaDeleteRecords,
	"replicasMoveAndLeadersAreElected":        saramaReplicas,
}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.ClientID = "sarama"
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Metadata.RefreshFrequency = 2 * time.Second
	if proof := security(); proof != nil {
		saramaSecure(config, proof)
	}
	return config
}

func saramaSecure(config *sarama.Config, proof *proofOfIdentity) {
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = proof.tls()
	switch proof.Way {
	case "SCRAM-SHA-512":
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA512
		config.Net.SASL.User, config.Net.SASL.Password = proof.Username, proof.Password
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &saramaScram{} }
	case "OAUTHBEARER":
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLTypeOAuth
		config.Net.SASL.TokenProvider = saramaToken(proof.Token)
	}
}

type saramaToken string

func (token saramaToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(token)}, nil
}

// sarama leaves the exchange to its user.
type saramaScram struct{ *scram.ClientConversation }

func (exchange *saramaScram) Begin(user, password, authorization string) error {
	client, err := scram.SHA512.NewClient(user, password, authorization)
	if err == nil {
		exchange.ClientConversation = client.NewConversation()
	}
	return err
}

func saramaAdmin(brokers []string) sarama.ClusterAdmin {
	return got(sarama.NewClusterAdmin(brokers, saramaConfig()))
}

// A new topic of three replicas, whose leaders are known.
func saramaTopic(brokers []string, partitions int32) string {
	admin := saramaAdmin(brokers)
	defer admin.Close()
	topic, least := fresh("topic"), "2"
	detail := &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: 3, ConfigEntries: map[string]*string{"min.insync.replicas": &least},
	}
	must(admin.CreateTopic(topic, detail, false))
	return topic
}

func idempotent() *sarama.Config {
	config := saramaConfig()
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	return config
}

func transactional(id string) *sarama.Config {
	config := idempotent()
	config.Producer.Transaction.ID = id
	return config
}

func messages(topic string, partitions int, values []string) []*sarama.ProducerMessage {
	made := make([]*sarama.ProducerMessage, len(values))
	for number, value := range values {
		made[number] = &sarama.ProducerMessage{
			Topic: topic, Partition: int32(number % partitions), Value: sarama.StringEncoder(value),
		}
	}
	return made
}

func saramaFill(brokers []string, config *sarama.Config, batch []*sarama.ProducerMessage) {
	producer := got(sarama.NewSyncProducer(brokers, config))
	defer producer.Close()
	must(producer.SendMessages(batch))
}

// What a reader without a group gets up to the present end, sorted.
func saramaRead(brokers []string, topic string, partitions int32, isolation sarama.IsolationLevel) []string {
	config := saramaConfig()
	config.Consumer.IsolationLevel = isolation
	end := fresh("end")
	ends := make([]string, partitions)
	for partition := range ends {
		ends[partition] = end
	}
	saramaFill(brokers, saramaConfig(), messages(topic, int(partitions), ends))
	consumer := got(sarama.NewConsumer(brokers, config))
	defer consumer.Close()
	values := []string{}
	for partition := range partitions {
		from := got(consumer.ConsumePartition(topic, partition, sarama.OffsetOldest))
		for last := ""; last != end; {
			select {
			case message := <-from.Messages():
				last = string(message.Value)
				if len(last) < 7 || last[:7] != "go-end-" {
					values = append(values, last)
				}
			case <-time.After(patience):
				panic("the end of " + topic + " is not reached")
			}
		}
		must(from.Close())
	}
	sort.Strings(values)
	return values
}

func saramaAborted(brokers []string) seen {
	topic := saramaTopic(brokers, 3)
	producer := got(sarama.NewSyncProducer(brokers, transactional(fresh("txn"))))
	for round := range 3 {
		suffix := string(rune('0' + round))
		must(producer.BeginTxn())
		must(producer.SendMessages(messages(topic, 3, numbered("aborted-"+suffix, 5))))
		must(producer.AbortTxn())
		must(producer.BeginTxn())
		must(producer.SendMessages(messages(topic, 3, numbered("committed-"+suffix, 5))))
		must(producer.CommitTxn())
	}
	must(producer.Close())
	return seen{
		"committed":  saramaRead(brokers, topic, 3, sarama.ReadCommitted),
		"everything": saramaRead(brokers, topic, 3, sarama.ReadUncommitted),
	}
}

func saramaFencing(brokers []string) seen {
	topic, id := saramaTopic(brokers, 1), fresh("txn")
	zombie := got(sarama.NewSyncProducer(brokers, transactional(id)))
	defer zombie.Close()
	must(zombie.BeginTxn())
	must(zombie.SendMessages(messages(topic, 1, []string{"zombie"})))
	second := got(sarama.NewSyncProducer(brokers, transactional(id)))
	must(second.BeginTxn())
	must(second.SendMessages(messages(topic, 1, []string{"second"})))
	var refused sarama.ProducerErrors
	if !errors.As(zombie.SendMessages(messages(topic, 1, []string{"zombie again"})), &refused) {
		panic("the zombie's record was taken")
	}
	aborted := zombie.AbortTxn()
	must(second.CommitTxn())
	must(second.Close())
	return seen{
		"send":      refusal(refused[0].Err),
		"abort":     refusal(aborted),
		"committed": saramaRead(brokers, topic, 1, sarama.ReadCommitted),
	}
}

// A member of a group: each claimed partition is handed to `each`.
type member struct {
	sync.Mutex
	group    sarama.ConsumerGroup
	assigned []int32
	each     func(sarama.ConsumerGroupSession, sarama.ConsumerGroupClaim)
	cancel   context.CancelFunc
	done     sync.WaitGroup
}

func join(brokers []string, group, topic string, config *sarama.Config, each func(sarama.ConsumerGroupSession, sarama.ConsumerGroupClaim)) *member {
	ctx, cancel := context.WithCancel(context.Background())
	joined := &member{group: got(sarama.NewConsumerGroup(brokers, group, config)), each: each, cancel: cancel}
	joined.done.Add(1)
	go func() {
		defer joined.done.Done()
		for ctx.Err() == nil {
			if err := joined.group.Consume(ctx, []string{topic}, joined); errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			}
		}
	}()
	return joined
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.Lock()
	defer m.Unlock()
	m.assigned = nil
	for _, partitions := range session.Claims() {
		m.assigned = append(m.assigned, partitions...)
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	m.Lock()
	defer m.Unlock()
	m.assigned = nil
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.each(session, claim)
	return nil
}

func (m *member) share() []int32 {
	m.Lock()
	defer m.Unlock()
	return append([]int32{}, m.assigned...)
}

func (m *member) leave() {
	m.cancel()
	m.done.Wait()
	must(m.group.Close())
}

func ignore(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
	for range claim.Messages() {
	}
}

func untilTheyShare(partitions int, members ...*member) []int {
	var parts []int
	until("the members share all partitions", func() bool {
		owned := map[int32]bool{}
		parts = nil
		for _, each := range members {
			share := each.share()
			parts = append(parts, len(share))
			for _, partition := range share {
				owned[partition] = true
			}
			if len(share) == 0 {
				return false
			}
		}
		total := 0
		for _, part := range parts {
			total += part
		}
		return total == partitions && len(owned) == partitions
	})
	return parts
}

func saramaMembers(brokers []string) seen {
	topic, group := saramaTopic(brokers, 4), fresh("group")
	one := join(brokers, group, topic, saramaConfig(), ignore)
	parts := untilTheyShare(4, one)
	two := join(brokers, group, topic, saramaConfig(), ignore)
	parts = append(parts, untilTheyShare(4, one, two)...)
	one.leave()
	parts = append(parts, untilTheyShare(4, two)...)
	two.leave()
	return seen{"parts": parts}
}

func saramaStatic(brokers []string) seen {
	topic, group := saramaTopic(brokers, 2), fresh("group")
	config := saramaConfig()
	config.Consumer.Group.InstanceId = "static-1"
	one := join(brokers, group, topic, config, ignore)
	untilTheyShare(2, one)
	admin := saramaAdmin(brokers)
	defer admin.Close()
	described := got(admin.DescribeConsumerGroups([]string{group}))[0]
	instances := []string{}
	for _, each := range described.Members {
		instances = append(instances, *each.GroupInstanceId)
	}
	one.leave() // a static member keeps its place until its session is over, or it is removed
	answer := got(admin.RemoveMemberFromConsumerGroup(group, []string{"static-1"}))
	return seen{"instances": instances, "removed": answer.Err == sarama.ErrNoError, "state": described.State}
}

func saramaTransform(brokers []string) seen {
	source, target, group := saramaTopic(brokers, 2), saramaTopic(brokers, 2), fresh("group")
	saramaFill(brokers, idempotent(), messages(source, 2, numbered("in", 60)))
	producer := got(sarama.NewSyncProducer(brokers, transactional(fresh("txn"))))
	defer producer.Close()
	config := saramaConfig()
	config.Consumer.Offsets.AutoCommit.Enable = false
	var turn sync.Mutex // the claims share the producer
	handled, transactions := 0, 0
	worker := join(brokers, group, source, config, func(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
		for message := range claim.Messages() {
			turn.Lock()
			for _, commits := range []bool{transactions%3 != 1, true} {
				transactions++
				must(producer.BeginTxn())
				prefix := "aborted"
				if commits {
					prefix = "out"
				}
				must(producer.SendMessages([]*sarama.ProducerMessage{{
					Topic: target, Partition: message.Partition, Value: sarama.StringEncoder(prefix + string(message.Value[2:])),
				}}))
				must(producer.AddMessageToTxn(message, group, nil))
				if commits {
					must(producer.CommitTxn())
					break
				}
				must(producer.AbortTxn())
			}
			handled++
			turn.Unlock()
		}
	})
	until("all is transformed", func() bool {
		turn.Lock()
		defer turn.Unlock()
		return handled >= 60
	})
	worker.leave()
	admin := saramaAdmin(brokers)
	defer admin.Close()
	var offsets []int64
	until("the last commit is visible", func() bool { // a commit is acknowledged before its markers are written
		found := got(admin.ListConsumerGroupOffsets(group, map[string][]int32{source: {0, 1}}))
		offsets = []int64{found.GetBlock(source, 0).Offset, found.GetBlock(source, 1).Offset}
		return offsets[0]+offsets[1] == 60
	})
	return seen{
		"committed": saramaRead(brokers, target, 2, sarama.ReadCommitted), "offsets": offsets, "aborted some": transactions > 60,
	}
}

func saramaOffsets(brokers []string) seen {
	topic, group := saramaTopic(brokers, 2), fresh("group")
	saramaFill(brokers, idempotent(), messages(topic, 2, numbered("value", 20)))
	marked := make(chan int32, 2)
	first := join(brokers, group, topic, saramaConfig(), func(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
		session.MarkOffset(topic, claim.Partition(), 3+4*int64(claim.Partition()), "half way")
		session.Commit()
		marked <- claim.Partition()
		<-session.Context().Done()
	})
	for range 2 {
		<-marked
	}
	first.leave()
	admin := saramaAdmin(brokers)
	defer admin.Close()
	found := got(admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1}}))
	after := [][]any{}
	for partition := range int32(2) {
		block := found.GetBlock(topic, partition)
		after = append(after, []any{block.Offset, block.Metadata})
	}
	var lock sync.Mutex
	rest := []string{}
	next := join(brokers, group, topic, saramaConfig(), func(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
		for message := range claim.Messages() {
			lock.Lock()
			rest = append(rest, string(message.Value))
			lock.Unlock()
		}
	})
	until("the rest is read", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(rest) >= 10
	})
	next.leave()
	sort.Strings(rest)
	return seen{"after": after, "rest": rest}
}

func saramaOffsetsByTime(brokers []string) seen {
	topic := saramaTopic(brokers, 1)
	batch := messages(topic, 1, numbered("value", 10))
	for number, message := range batch {
		message.Timestamp = time.UnixMilli(1_000_000 + int64(number)*1000)
	}
	saramaFill(brokers, saramaConfig(), batch)
	client := got(sarama.NewClient(brokers, saramaConfig()))
	defer client.Close()
	saw := seen{}
	for name, at := range map[string]int64{
		"0": 0, "1003000": 1_003_000, "1003001": 1_003_001, "1009001": 1_009_001,
		"oldest": sarama.OffsetOldest, "newest": sarama.OffsetNewest,
	} {
		saw[name] = got(client.GetOffset(topic, 0, at))
	}
	return saw
}

func saramaCodecs(brokers []string) seen {
	saw := seen{}
	for _, codec := range []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	} {
		topic := saramaTopic(brokers, 1)
		config := idempotent()
		config.Producer.Compression = codec
		saramaFill(brokers, config, messages(topic, 1, numbered("value", 50)))
		saw[codec.String()] = len(saramaRead(brokers, topic, 1, sarama.ReadCommitted))
	}
	return saw
}

func saramaTopics(brokers []string) seen {
	admin := saramaAdmin(brokers)
	defer admin.Close()
	topic := saramaTopic(brokers, 2)
	saw := seen{"again": refusal(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false)) != ""}
	partitions := func() int {
		described := got(admin.DescribeTopics([]string{topic}))[0]
		return len(described.Partitions)
	}
	until("the topic is known", func() bool { return partitions() == 2 })
	must(admin.CreatePartitions(topic, 5, nil, false))
	until("the topic has grown", func() bool { return partitions() == 5 })
	saw["fewer"] = refusal(admin.CreatePartitions(topic, 3, nil, false)) != ""
	must(admin.DeleteTopic(topic))
	until("the topic is gone", func() bool {
		_, there := got(admin.ListTopics())[topic]
		return !there
	})
	saw["deleted again"] = errors.Is(admin.DeleteTopic(topic), sarama.ErrUnknownTopicOrPartition)
	described, controller, err := admin.DescribeCluster()
	must(err)
	ids := []int32{}
	for _, broker := range described {
		ids = append(ids, broker.ID())
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	saw["nodes"], saw["a controller"] = ids, controller >= 1
	return saw
}

func saramaSettings(brokers []string) seen {
	admin := saramaAdmin(brokers)
	defer admin.Close()
	topic := saramaTopic(brokers, 1)
	setting := func(name string) (value string) {
		entries := got(admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{name}}))
		for _, entry := range entries {
			if entry.Name == name {
				value = entry.Value
			}
		}
		return value
	}
	saw := seen{"made": setting("min.insync.replicas")}
	hour := "3600000"
	edit := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &hour},
	}
	must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, edit, false))
	until("the change is seen", func() bool { return setting("retention.ms") == hour })
	edit["retention.ms"] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationDelete}
	must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, edit, false))
	until("the default is back", func() bool { return setting("retention.ms") == "604800000" })
	bad := "soon"
	edit["retention.ms"] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &bad}
	saw["bad value"] = refusal(admin.IncrementalAlterConfig(sarama.TopicResource, topic, edit, false)) != ""
	return saw
}

func saramaGroups(brokers []string) seen {
	admin := saramaAdmin(brokers)
	defer admin.Close()
	topic, group := saramaTopic(brokers, 1), fresh("group")
	one := join(brokers, group, topic, saramaConfig(), ignore)
	untilTheyShare(1, one)
	described := got(admin.DescribeConsumerGroups([]string{group}))[0]
	saw := seen{
		"state": described.State, "protocol": described.Protocol, "members": len(described.Members),
		"listed": got(admin.ListConsumerGroups())[group], "delete a live one": errors.Is(admin.DeleteConsumerGroup(group), sarama.ErrNonEmptyGroup),
	}
	one.leave()
	until("the group is deleted", func() bool { return admin.DeleteConsumerGroup(group) == nil })
	_, there := got(admin.ListConsumerGroups())[group]
	saw["listed after that"] = there
	return saw
}

func saramaDeleteRecords(brokers []string) seen {
	admin := saramaAdmin(brokers)
	defer admin.Close()
	topic := saramaTopic(brokers, 1)
	saramaFill(brokers, idempotent(), messages(topic, 1, numbered("value", 10)))
	must(admin.DeleteRecords(topic, map[int32]int64{0: 4}))
	return seen{
		"read":           saramaRead(brokers, topic, 1, sarama.ReadCommitted),
		"beyond the end": refusal(admin.DeleteRecords(topic, map[int32]int64{0: 1000})) != "",
	}
}

func saramaReplicas(brokers []string) seen {
	admin := saramaAdmin(brokers)
	defer admin.Close()
	topic := saramaTopic(brokers, 1)
	saramaFill(brokers, idempotent(), messages(topic, 1, numbered("value", 20)))
	must(admin.AlterPartitionReassignments(topic, [][]int32{{2, 3}}))
	until("the replicas have moved", func() bool {
		moving := got(admin.ListPartitionReassignments(topic, []int32{0}))
		partition := got(admin.DescribeTopics([]string{topic}))[0].Partitions[0]
		return len(moving[topic]) == 0 && len(partition.Replicas) == 2 && len(partition.Isr) == 2
	})
	elected, err := admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{topic: {0}})
	must(err)
	code := elected[topic][0].ErrorCode
	return seen{
		"values":  len(saramaRead(brokers, topic, 1, sarama.ReadCommitted)),
		"elected": code == sarama.ErrNoError || code == sarama.ErrElectionNotNeeded,
	}
}
