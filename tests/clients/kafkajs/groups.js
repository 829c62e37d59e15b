'use strict'
// Groups: who reads what, and what happens to the records while that changes.  kafkajs has no static members and no
// cooperative assignors.

const { fresh, until, untilTheyShare } = require('./cluster')
const { setTimeout: pause } = require('node:timers/promises')

const ignore = () => {}

exports.membersShareAndHandOver = async cluster => {
  const topic = await cluster.topic(4)
  const group = fresh('group')
  const parts = []
  const one = await cluster.member(group, topic, ignore)
  await untilTheyShare(4, one)
  parts.push(one.assigned.length)
  const two = await cluster.member(group, topic, ignore)
  await untilTheyShare(4, one, two)
  parts.push(one.assigned.length, two.assigned.length)
  await one.leave()
  await untilTheyShare(4, two)
  parts.push(two.assigned.length)
  await two.leave()
  return { parts, crashed: one.crashed + two.crashed }
}

exports.nothingIsLostWhileMembersComeAndGo = async cluster => {
  const topic = await cluster.topic(6)
  const group = fresh('group')
  const handled = new Set()
  const member = () => cluster.member(group, topic, ({ message }) => { handled.add(message.value.toString()) })
  const sent = []
  let feeding = true
  const feeder = cluster.producing({ idempotent: true }, async producer => {
    for (let number = 0; feeding; number++) {
      const messages = Array.from({ length: 6 }, (_, partition) => ({ partition, value: `value-${number}-${partition}` }))
      await producer.send({ topic, acks: -1, messages })
      sent.push(...messages.map(({ value }) => value))
      await pause(5) // a steady trickle
    }
  })
  const one = await member()
  await untilTheyShare(6, one)
  const two = await member()
  const three = await member()
  await untilTheyShare(6, one, two, three)
  await one.leave()
  await untilTheyShare(6, two, three)
  const four = await member()
  await untilTheyShare(6, two, three, four)
  await Promise.all([two.leave(), three.leave()])
  await untilTheyShare(6, four)
  feeding = false
  await feeder
  const missing = () => sent.filter(value => !handled.has(value)).slice(0, 10)
  await until('every record is handled', () => !missing().length)
  await four.leave()
  return { sent: sent.length, lost: missing(), crashed: [one, two, three, four].map(({ crashed }) => crashed).join('') }
}
