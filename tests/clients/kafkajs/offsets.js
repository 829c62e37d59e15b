'use strict'
// Offsets: kept for a group, set and reset from outside, and found by time.

const { fresh, numbered, patiently, refusal, until, untilTheyShare } = require('./cluster')

const offsetsOf = async (cluster, groupId, topic) => {
  const [found] = await patiently(() => cluster.admin.fetchOffsets({ groupId, topics: [topic] }))
  return found.partitions.sort((one, two) => one.partition - two.partition).map(({ offset, metadata }) => [offset, metadata])
}

exports.committedOffsetsAreFoundByTheNextReader = async cluster => {
  const topic = await cluster.topic(2)
  const group = fresh('group')
  await cluster.fill(topic, 2, numbered('value', 20))
  const saw = { before: await offsetsOf(cluster, group, topic) }
  const first = await cluster.member(group, topic, () => {}, {}, { autoCommit: false })
  await untilTheyShare(2, first)
  await first.consumer.commitOffsets([
    { topic, partition: 0, offset: '3', metadata: 'half way' },
    { topic, partition: 1, offset: '7' },
  ])
  await first.leave()
  saw.after = await offsetsOf(cluster, group, topic)
  const rest = []
  const next = await cluster.member(group, topic, ({ message }) => { rest.push(message.value.toString()) })
  await until('the rest is read', () => rest.length >= 10)
  await next.leave()
  saw.rest = rest.sort()
  return saw
}

exports.offsetsAreSetAndResetFromOutside = async cluster => {
  const topic = await cluster.topic(1)
  const group = fresh('group')
  const { admin } = cluster
  await cluster.fill(topic, 1, numbered('value', 10))
  const saw = {}
  await patiently(() => admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '4' }] }))
  saw.set = await offsetsOf(cluster, group, topic)
  await admin.resetOffsets({ groupId: group, topic, earliest: true })
  const member = await cluster.member(group, topic, () => {}, {}, { autoCommit: false })
  await untilTheyShare(1, member)
  saw['of a live group'] = await refusal(() => admin.resetOffsets({ groupId: group, topic, earliest: true }))
  await member.leave()
  saw.reset = await offsetsOf(cluster, group, topic)
  return saw
}

exports.offsetsAreFoundByTime = async cluster => {
  const topic = await cluster.topic(1)
  const messages = Array.from({ length: 10 }, (_, number) => ({
    value: `value-${number}`,
    partition: 0,
    timestamp: String(1_000_000 + number * 1000),
  }))
  await cluster.producing({}, producer => producer.send({ topic, acks: -1, messages }))
  const saw = {}
  for (const time of [0, 1_003_000, 1_003_001, 1_009_001]) {
    const [{ offset }] = await cluster.admin.fetchTopicOffsetsByTimestamp(topic, time)
    saw[time] = offset
  }
  const [{ low, high }] = await cluster.admin.fetchTopicOffsets(topic)
  return { ...saw, low, high }
}
