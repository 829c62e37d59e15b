'use strict'
// The cluster under test: clients of it, and what several cases ask of it.

process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
const { randomUUID } = require('node:crypto')
const { readFileSync } = require('node:fs')
const { setTimeout: pause } = require('node:timers/promises')
const { Kafka, logLevel } = require('kafkajs')

const PATIENCE_MS = 30_000

// Of the environment, or nothing: tests/cluster/secured_ways.py says what it has.
function security() {
  if (!process.env.CLIENT_SECURITY) return {}
  const { way, ca, certificate, username, password, token } = JSON.parse(process.env.CLIENT_SECURITY)
  const read = file => (file ? readFileSync(file, 'utf8') : undefined)
  const ssl = { ca: [read(ca)], cert: read(certificate), key: read(certificate) }
  if (way === 'SSL') return { ssl }
  if (way === 'OAUTHBEARER') return { ssl, sasl: { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) } }
  return { ssl, sasl: { mechanism: way.toLowerCase(), username, password } }
}

class Cluster {
  static async connect(bootstrap) {
    const cluster = new Cluster()
    cluster.kafka = new Kafka({
      brokers: bootstrap.split(','),
      clientId: 'kafkajs',
      ...security(),
      logLevel: logLevel.WARN,
      logCreator: () => entry => process.stderr.write(JSON.stringify(entry) + '\n'),
    })
    cluster.admin = cluster.kafka.admin()
    await cluster.admin.connect()
    return cluster
  }

  close() {
    return this.admin.disconnect()
  }

  // A new topic of three replicas.
  async topic(partitions, configEntries = []) {
    const topic = fresh('topic')
    const configs = [{ name: 'min.insync.replicas', value: '2' }, ...configEntries]
    await this.admin.createTopics({
      topics: [{ topic, numPartitions: partitions, replicationFactor: 3, configEntries: configs }],
      waitForLeaders: true,
    })
    return topic
  }

  // Runs the work with a connected producer and disconnects it.
  async producing(settings, work) {
    const producer = this.kafka.producer(settings)
    await producer.connect()
    try {
      return await work(producer)
    } finally {
      await producer.disconnect()
    }
  }

  fill(topic, partitions, values) {
    return this.producing({}, producer => send(producer, topic, partitions, values))
  }

  // One producer instance of this transactional id.
  transactional(transactionalId, settings, work) {
    return this.producing({ transactionalId, idempotent: true, maxInFlightRequests: 1, ...settings }, work)
  }

  // What a reader gets, sorted, up to a mark that is written behind everything.
  async read(topic, partitions, readUncommitted = false) {
    const end = fresh('end')
    await this.fill(topic, partitions, Array(partitions).fill(end))
    const values = []
    const ended = new Set()
    const member = await this.member(fresh('reader'), topic, ({ partition, message }) => {
      const value = message.value.toString()
      if (value === end) ended.add(partition)
      else if (!value.startsWith('kafkajs-end-')) values.push(value)
    }, { readUncommitted })
    try {
      await until(`${topic} is read to its end`, () => ended.size === partitions)
    } finally {
      await member.leave()
    }
    return values.sort()
  }

  // A member of a group at work; `assigned` are its partitions, `joined` how often it was told of them.
  async member(groupId, topic, eachMessage, settings = {}, run = {}) {
    const consumer = this.kafka.consumer({ groupId, heartbeatInterval: 300, maxWaitTimeInMs: 100, ...settings })
    const member = { consumer, assigned: [], joined: 0, crashed: '', leave: () => consumer.disconnect() }
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      member.assigned = payload.memberAssignment[topic] || []
      member.joined += 1
    })
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      // kafkajs does not ask a coordinator again that has just been elected, and reads its log: it begins anew by itself
      if (payload.restart && payload.error.type === 'GROUP_LOAD_IN_PROGRESS') return
      member.crashed = payload.error.type || payload.error.name
    })
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await consumer.run({ eachMessage: async payload => eachMessage(payload, member), ...run })
    return member
  }
}

const fresh = what => `kafkajs-${what}-${randomUUID()}`

const numbered = (what, count) => Array.from({ length: count }, (_, number) => `${what}-${String(number).padStart(3, '0')}`)

// To one partition after the other; resolves when all are acknowledged.  `producer` may be a transaction.
const send = (producer, topic, partitions, values) =>
  producer.send({ topic, acks: -1, messages: values.map((value, number) => ({ value, partition: number % partitions })) })

// Waits until the condition holds.
const until = async (what, condition) => {
  const deadline = Date.now() + PATIENCE_MS
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE_MS} ms: ${what}`)
    await pause(20)
  }
}

// What kafkajs does not repeat by itself: its first word to a coordinator that is just becoming one, or reads its log.
const patiently = async action => {
  let result
  await until('the coordinator is at work', async () => {
    try {
      result = await action()
      return true
    } catch (error) {
      if (!['NOT_COORDINATOR_FOR_GROUP', 'GROUP_LOAD_IN_PROGRESS'].includes(error.type)) throw error
      return false
    }
  })
  return result
}

// The members share all partitions, each its part.
const untilTheyShare = (partitions, ...members) =>
  until(`${members.length} members share ${partitions} partitions`, () => {
    const parts = members.map(member => member.assigned)
    return parts.every(part => part.length) && parts.flat().length === partitions && new Set(parts.flat()).size === partitions
  })

// The type of the error that the action throws, "" when it succeeds.
const refusal = async action => {
  try {
    await action()
    return ''
  } catch (error) {
    const [one] = error.errors || error.groups || error.partitions || []
    const causes = [error, one, one && one.error, error.cause]
    return causes.map(cause => cause && cause.type).find(type => type) || `${error.name}: ${error.message}`
  }
}

module.exports = { Cluster, fresh, numbered, send, until, untilTheyShare, patiently, refusal }
