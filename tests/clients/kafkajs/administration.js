'use strict'
// What an operator asks and orders.

const { CompressionTypes, ConfigResourceTypes } = require('kafkajs')
const { fresh, numbered, refusal, until, untilTheyShare } = require('./cluster')

exports.topicsAreMadeDescribedGrownAndDeleted = async cluster => {
  const { admin } = cluster
  const topic = fresh('topic')
  const wanted = { topic, numPartitions: 2, replicationFactor: 3 }
  const saw = {}
  saw.tried = await admin.createTopics({ topics: [wanted], validateOnly: true, waitForLeaders: false })
  saw['only tried'] = (await admin.listTopics()).includes(topic)
  saw.made = await admin.createTopics({ topics: [wanted] })
  saw['made again'] = await admin.createTopics({ topics: [wanted] })
  saw['bad name'] = await refusal(() => admin.createTopics({ topics: [{ topic: 'bad name!' }] }))
  saw['nine replicas'] = await refusal(() => admin.createTopics({ topics: [{ topic: fresh('topic'), replicationFactor: 9 }] }))
  await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  saw.fewer = await refusal(() => admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] }))
  await until('the new partitions are known, in sync', async () => {
    const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] })
    return described.partitions.length === 4 && described.partitions.every(({ isr, leader }) => isr.length === 3 && leader > 0)
  })
  await admin.deleteTopics({ topics: [topic] })
  await until('the topic is gone', async () => !(await admin.listTopics()).includes(topic))
  saw['deleted again'] = await refusal(() => admin.deleteTopics({ topics: [topic] }))
  return saw
}

exports.settingsAreDescribedAndReplaced = async cluster => {
  const { admin } = cluster
  const topic = await cluster.topic(1, [{ name: 'retention.ms', value: '3600000' }])
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const names = ['cleanup.policy', 'retention.ms']
  const shown = async () => {
    const { resources: [{ configEntries }] } = await admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ ...resource, configNames: names }],
    })
    return Object.fromEntries(configEntries.map(({ configName, configValue }) => [configName, configValue]))
  }
  const alter = entries => admin.alterConfigs({
    validateOnly: false,
    resources: [{ ...resource, configEntries: Object.entries(entries).map(([name, value]) => ({ name, value })) }],
  })
  const saw = { made: await shown() }
  await alter({ 'cleanup.policy': 'compact' })
  await until('the change is known', async () => (await shown())['cleanup.policy'] === 'compact')
  saw.replaced = await shown()
  saw['bad value'] = await refusal(() => alter({ 'cleanup.policy': 'burn' }))
  const broker = await admin.describeConfigs({ resources: [{ type: ConfigResourceTypes.BROKER, name: '1' }] })
  const entry = broker.resources[0].configEntries.find(({ configName }) => configName === 'transaction.max.timeout.ms')
  saw["a broker's"] = entry.configValue
  return saw
}

exports.groupsAreListedDescribedAndDeleted = async cluster => {
  const { admin } = cluster
  const topic = await cluster.topic(2)
  const group = fresh('group')
  const saw = {}
  const described = async () => (await admin.describeGroups([group])).groups[0]
  const listed = async () => (await admin.listGroups()).groups.filter(({ groupId }) => groupId === group)
  const member = await cluster.member(group, topic, () => {})
  await untilTheyShare(2, member)
  await until('the group is stable', async () => (await described()).state === 'Stable')
  const { protocol, protocolType, members } = await described()
  saw.live = { protocol, protocolType, members: members.map(({ clientId }) => clientId) }
  saw.listed = (await listed()).map(each => each.protocolType)
  saw['delete a live one'] = await refusal(() => admin.deleteGroups([group]))
  await member.leave()
  await until('the group is empty', async () => (await described()).state === 'Empty')
  saw.deleted = (await admin.deleteGroups([group])).map(({ errorCode }) => errorCode)
  saw['listed after that'] = await listed()
  saw['deleted again'] = await refusal(() => admin.deleteGroups([group]))
  return saw
}

exports.recordsAreDeleted = async cluster => {
  const { admin } = cluster
  const topic = await cluster.topic(1)
  await cluster.fill(topic, 1, numbered('value', 10))
  await admin.fetchTopicOffsets(topic) // kafkajs looks for leaders among the topics that it was asked for before
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  const [{ low, high }] = await admin.fetchTopicOffsets(topic)
  const beyond = await refusal(() => admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '11' }] }))
  return { low, high, 'beyond the end': beyond, read: await cluster.read(topic, 1) }
}

exports.theClusterIsDescribed = async cluster => {
  const { brokers, controller, clusterId } = await cluster.admin.describeCluster()
  const nodes = brokers.map(({ nodeId }) => nodeId).sort()
  return { nodes, clusterId, 'the controller is one of them': nodes.includes(controller) }
}

exports.replicasMove = async cluster => {
  const { admin } = cluster
  const topic = await cluster.topic(1)
  await cluster.fill(topic, 1, numbered('value', 20))
  const partition = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions[0]
  const { replicas: [first, second, third] } = await partition()
  for (const wanted of [[third, second], [second, third, first]]) {
    await admin.alterPartitionReassignments({ topics: [{ topic, partitionAssignment: [{ partition: 0, replicas: wanted }] }] })
    await until(`the replicas are ${wanted}`, async () => {
      const { topics } = await admin.listPartitionReassignments({ topics: [{ topic, partitions: [0] }] })
      const { replicas, isr } = await partition()
      return !topics.length && String(replicas) === String(wanted) && String(isr.sort()) === String([...wanted].sort())
    })
  }
  return { values: (await cluster.read(topic, 1)).length }
}

exports.gzipPasses = async cluster => {
  const topic = await cluster.topic(1)
  const messages = numbered('value', 50).map(value => ({ value, key: 'key', headers: { trace: 'x' }, partition: 0 }))
  await cluster.producing({}, producer => producer.send({ topic, acks: -1, compression: CompressionTypes.GZIP, messages }))
  return { read: await cluster.read(topic, 1) }
}
