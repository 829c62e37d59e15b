'use strict'

const { fresh, messages, numbered, refusal, until, untilTheyShare } = require('./cluster')

// Topics go by their ids from here on: it knows no Fetch before version 13.
exports.whatIsWrittenIsRead = async cluster => {
  const topic = await cluster.topic(3)
  await cluster.fill(topic, 3, numbered('value', 60), { idempotent: true })
  return { read: await cluster.read(topic, 3) }
}

exports.everyCodecPasses = async cluster => {
  const saw = {}
  for (const compression of ['none', 'gzip', 'snappy', 'lz4']) {
    const topic = await cluster.topic(1)
    const why = await refusal(() => cluster.fill(topic, 1, numbered('value', 50), { compression }))
    saw[compression] = why || (await cluster.read(topic, 1)).length
  }
  return saw
}

// It hands out aborted records to its readers, also from Kafka: what is committed is read by the test itself.
exports.aTransactionIsCommittedOrAbortedWhole = async cluster => {
  const topic = await cluster.topic(3)
  const producer = cluster.producer({ idempotent: true, transactionalId: fresh('txn') })
  for (let round = 0; round < 3; round++) {
    const aborted = await producer.beginTransaction()
    await aborted.send({ messages: messages(topic, 3, numbered(`aborted-${round}`, 5)) })
    await aborted.abort()
    const committed = await producer.beginTransaction()
    await committed.send({ messages: messages(topic, 3, numbered(`committed-${round}`, 5)) })
    await committed.commit()
  }
  return { topic }
}

exports.offsetsMoveWithTheOutput = async cluster => {
  const source = await cluster.topic(1)
  const target = await cluster.topic(1)
  const group = fresh('group')
  await cluster.fill(source, 1, numbered('in', 20))
  const producer = cluster.producer({ idempotent: true, transactionalId: fresh('txn') })
  const consumer = cluster.consumer(group)
  const stream = await consumer.consume({ topics: [source], mode: 'committed', fallbackMode: 'earliest', autocommit: false })
  let done = 0
  for await (const message of stream) {
    for (const commits of done % 3 === 1 ? [false, true] : [true]) {
      const transaction = await producer.beginTransaction()
      await transaction.addConsumer(consumer)
      await transaction.send({ messages: messages(target, 1, [(commits ? 'out' : 'aborted') + message.value.slice(2)]) })
      await transaction.addOffset(message)
      await (commits ? transaction.commit() : transaction.abort())
    }
    if (++done === 20) break
  }
  let offset
  await until('the last commit is visible', async () => { // it is acknowledged before its markers are written
    const offsets = await consumer.listCommittedOffsets({ topics: [{ topic: source, partitions: [0] }] })
    offset = Number(offsets.get(source)[0])
    return offset >= 20
  })
  return { topic: target, offset }
}

const handOver = async (cluster, settings) => {
  const topic = await cluster.topic(4)
  const group = fresh('group')
  const parts = []
  const one = await cluster.member(group, topic, settings)
  parts.push(...(await untilTheyShare(4, one)))
  const two = await cluster.member(group, topic, settings)
  parts.push(...(await untilTheyShare(4, one, two)))
  await one.leave()
  parts.push(...(await untilTheyShare(4, two)))
  await cluster.fill(topic, 4, numbered('value', 20))
  await until('all is read', () => two.values.length >= 20)
  const read = two.values.length
  await two.leave()
  return { parts, read }
}

exports.membersShareAndHandOver = cluster => handOver(cluster, {})

exports.membersOfTheNewProtocolShareAndHandOver = cluster => handOver(cluster, { groupProtocol: 'consumer' })

exports.committedOffsetsAreFoundByTheNextReader = async cluster => {
  const topic = await cluster.topic(2)
  const group = fresh('group')
  await cluster.fill(topic, 2, numbered('value', 20))
  const first = await cluster.member(group, topic, {}, { autocommit: false })
  await untilTheyShare(2, first)
  const offsets = [3n, 7n].map((offset, partition) => ({ topic, partition, offset, leaderEpoch: -1 }))
  await first.consumer.commit({ offsets })
  await first.leave()
  const next = await cluster.member(group, topic)
  await until('the rest is read', () => next.values.length >= 10)
  await next.leave()
  return { rest: [...next.values].sort() }
}

exports.theEndsOfAPartitionAreFound = async cluster => {
  const topic = await cluster.topic(1)
  await cluster.fill(topic, 1, numbered('value', 10))
  const consumer = cluster.consumer(fresh('group'))
  const saw = {}
  for (const timestamp of [-1n, -2n]) {
    const offsets = await consumer.listOffsets({ topics: [topic], timestamp })
    saw[timestamp] = Number(offsets.get(topic)[0])
  }
  return saw
}

exports.topicsAreMadeGrownAndDeleted = async cluster => {
  const { admin } = cluster
  const topic = await cluster.topic(2)
  const saw = { again: await refusal(() => admin.createTopics({ topics: [topic], partitions: 1, replicas: 1 })) }
  await admin.createPartitions({ topics: [{ name: topic, count: 5, assignments: null }] })
  const metadata = async () => (await admin.metadata({ topics: [topic], forceUpdate: true })).topics.get(topic)
  await until('the topic has grown', async () => (await metadata()).partitionsCount === 5)
  await admin.deleteTopics({ topics: [topic] })
  await until('the topic is gone', async () => !(await admin.listTopics()).includes(topic))
  saw['deleted again'] = await refusal(() => admin.deleteTopics({ topics: [topic] }))
  return saw
}

exports.groupsAreListedDescribedAndDeleted = async cluster => {
  const { admin } = cluster
  const topic = await cluster.topic(1)
  const group = fresh('group')
  const one = await cluster.member(group, topic)
  await untilTheyShare(1, one)
  const described = (await admin.describeGroups({ groups: [group] })).get(group)
  const saw = {
    state: described.state,
    members: described.members.size,
    listed: (await admin.listGroups()).has(group),
    'delete a live one': await refusal(() => admin.deleteGroups({ groups: [group] })),
  }
  await one.leave()
  await until('the group is deleted', async () => (await refusal(() => admin.deleteGroups({ groups: [group] }))) === '')
  saw['listed after that'] = (await admin.listGroups()).has(group)
  return saw
}

exports.settingsAreDescribedAndChanged = async cluster => {
  const { admin } = cluster
  const topic = await cluster.topic(1)
  const setting = async () => {
    const resources = [{ resourceType: 2, resourceName: topic, configurationKeys: ['retention.ms'] }]
    const [described] = await admin.describeConfigs({ resources })
    return described.configs[0].value
  }
  const edit = (configOperation, value) => {
    const configs = [{ name: 'retention.ms', configOperation, value }]
    return admin.incrementalAlterConfigs({ resources: [{ resourceType: 2, resourceName: topic, configs }] })
  }
  const saw = { made: await setting() }
  await edit(0, '3600000')
  await until('the change is seen', async () => (await setting()) === '3600000')
  await edit(1, null)
  await until('the default is back', async () => (await setting()) === saw.made)
  saw['bad value'] = await refusal(() => edit(0, 'soon'))
  return saw
}
