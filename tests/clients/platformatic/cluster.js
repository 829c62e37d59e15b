'use strict'
// The cluster under test: clients of it, and what several cases ask of it.

const { randomUUID } = require('node:crypto')
const { readFileSync } = require('node:fs')
const { setTimeout: pause } = require('node:timers/promises')
const { Admin, Consumer, Producer, stringDeserializers, stringSerializers } = require('@platformatic/kafka')

const PATIENCE_MS = 30_000

// Of the environment, or nothing: tests/cluster/secured_ways.py says what it has.
function security() {
  if (!process.env.CLIENT_SECURITY) return {}
  const { way, ca, certificate, username, password, token } = JSON.parse(process.env.CLIENT_SECURITY)
  const read = file => (file ? readFileSync(file, 'utf8') : undefined)
  const tls = { ca: [read(ca)], cert: read(certificate), key: read(certificate) }
  if (way === 'SSL') return { tls }
  return { tls, sasl: way === 'OAUTHBEARER' ? { mechanism: way, token } : { mechanism: way, username, password } }
}

class Cluster {
  constructor(bootstrap) {
    this.base = { bootstrapBrokers: bootstrap.split(','), clientId: 'platformatic', retries: 100, retryDelay: 200, ...security() }
    this.admin = new Admin(this.base)
  }

  // A new topic of three replicas.
  async topic(partitions) {
    const topic = fresh('topic')
    const configs = [{ name: 'min.insync.replicas', value: '2' }]
    await this.admin.createTopics({ topics: [topic], partitions, replicas: 3, configs })
    await until('the topic has leaders', async () => {
      try {
        const { topics } = await this.admin.metadata({ topics: [topic], forceUpdate: true })
        return topics.get(topic).partitions.every(({ leader }) => leader >= 0)
      } catch {
        return false
      }
    })
    return topic
  }

  producer(settings = {}) {
    return new Producer({ ...this.base, serializers: stringSerializers, ...settings })
  }

  consumer(groupId, settings = {}) {
    const options = { groupId, deserializers: stringDeserializers, maxWaitTime: 100, heartbeatInterval: 300, ...settings }
    return new Consumer({ ...this.base, ...options })
  }

  async fill(topic, partitions, values, settings = {}) {
    const producer = this.producer(settings)
    await producer.send({ acks: -1, messages: messages(topic, partitions, values) }) // it forgets the producer's own setting
    await producer.close()
  }

  // What a reader gets, sorted, up to a mark that is written behind everything.
  async read(topic, partitions, isolationLevel = 1) {
    const end = fresh('end')
    await this.fill(topic, partitions, Array(partitions).fill(end))
    const consumer = this.consumer(fresh('reader'), { isolationLevel })
    const stream = await consumer.consume({ topics: [topic], mode: 'earliest', autocommit: false })
    const values = []
    let ended = 0
    for await (const { value } of stream) {
      if (value === end) ended += 1
      else if (!value.startsWith('platformatic-end-')) values.push(value)
      if (ended === partitions) break
    }
    await consumer.close(true)
    return values.sort()
  }

  // A member of a group at work; `values` are what it has read.
  async member(groupId, topic, settings = {}, consume = {}) {
    const consumer = this.consumer(groupId, settings)
    const values = []
    const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', ...consume })
    stream.on('data', ({ value }) => values.push(value))
    stream.on('error', error => { values.error = String(error) })
    const assigned = () => (consumer.assignments || []).filter(each => each.topic === topic).flatMap(each => each.partitions)
    return { consumer, values, assigned, leave: () => consumer.close(true) }
  }
}

const fresh = what => `platformatic-${what}-${randomUUID()}`

const numbered = (what, count) => Array.from({ length: count }, (_, number) => `${what}-${String(number).padStart(3, '0')}`)

const messages = (topic, partitions, values) =>
  values.map((value, number) => ({ topic, value, partition: number % partitions }))

// Waits until the condition holds.
const until = async (what, condition) => {
  const deadline = Date.now() + PATIENCE_MS
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE_MS} ms: ${what}`)
    await pause(20)
  }
}

// The members share all partitions, each its part; returns how many each has.
const untilTheyShare = async (partitions, ...members) => {
  let parts = []
  await until(`${members.length} members share ${partitions} partitions`, () => {
    parts = members.map(member => member.assigned())
    return parts.every(part => part.length) && parts.flat().length === partitions && new Set(parts.flat()).size === partitions
  })
  return parts.map(part => part.length)
}

// The protocol's name of the error that the action is refused with, "" when it succeeds.
const refusal = async action => {
  try {
    await action()
    return ''
  } catch (error) {
    const all = [error, ...(error.errors || []), error.cause].filter(Boolean)
    const deep = all.flatMap(each => [each, ...(each.errors || [])])
    return deep.map(each => each.apiId).find(Boolean) || error.message
  }
}

module.exports = { Cluster, fresh, messages, numbered, refusal, until, untilTheyShare }
