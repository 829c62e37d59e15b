'use strict'
// Transactions, from a producer's and a reader's side.  kafkajs knows only the first versions of these requests.

const { fresh, numbered, refusal, send, until } = require('./cluster')

exports.abortedRecordsAreNeverRead = async cluster => {
  const topic = await cluster.topic(3)
  await cluster.transactional(fresh('txn'), {}, async producer => {
    for (let round = 0; round < 3; round++) {
      const aborted = await producer.transaction()
      await send(aborted, topic, 3, numbered(`aborted-${round}`, 5))
      await aborted.abort()
      const committed = await producer.transaction()
      await send(committed, topic, 3, numbered(`committed-${round}`, 5))
      await committed.commit()
    }
  })
  return { committed: await cluster.read(topic, 3), everything: await cluster.read(topic, 3, true) }
}

exports.aSecondInstanceFencesTheFirst = async cluster => {
  const topic = await cluster.topic(1)
  const id = fresh('txn')
  const saw = {}
  await cluster.transactional(id, {}, async zombie => {
    const open = await zombie.transaction()
    await send(open, topic, 1, ['zombie'])
    await cluster.transactional(id, {}, async second => {
      const next = await second.transaction()
      await send(next, topic, 1, ['second'])
      saw.send = await refusal(() => send(open, topic, 1, ['zombie again']))
      saw.commit = await refusal(() => open.commit())
      await next.commit()
    })
  })
  saw.committed = await cluster.read(topic, 1)
  return saw
}

exports.aTransactionPastItsTimeoutIsAborted = async cluster => {
  const topic = await cluster.topic(1)
  const id = fresh('txn')
  const saw = {}
  await cluster.transactional(id, { transactionTimeout: 3000 }, async late => {
    const open = await late.transaction()
    await send(open, topic, 1, ['late'])
    // kafkajs cannot describe a transaction; when its partition is readable again, it is decided.
    saw.meanwhile = await cluster.read(topic, 1)
    saw.commit = await refusal(() => open.commit())
  })
  await cluster.transactional(id, {}, async next => {
    const open = await next.transaction()
    await send(open, topic, 1, ['next'])
    await open.commit()
  })
  saw.committed = await cluster.read(topic, 1)
  return saw
}

exports.offsetsMoveWithTheOutput = async cluster => {
  const source = await cluster.topic(2)
  const target = await cluster.topic(2)
  const group = fresh('group')
  const values = numbered('in', 60)
  while (values.length) await cluster.fill(source, 2, values.splice(0, 10)) // several batches, so several transactions
  let transactions = 0
  let done = 0
  await cluster.transactional(fresh('txn'), {}, async producer => {
    const eachBatch = async ({ batch, resolveOffset }) => {
      for (let attempt = transactions++ % 3 === 1 ? 0 : 1; attempt < 2; attempt++) {
        const transaction = await producer.transaction()
        const messages = batch.messages.map(({ value }) => ({
          value: (attempt ? 'out' : 'aborted') + value.toString().slice(2),
          partition: batch.partition,
        }))
        await transaction.send({ topic: target, acks: -1, messages })
        const offset = String(Number(batch.lastOffset()) + 1)
        const partitions = [{ partition: batch.partition, offset }]
        await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions }] })
        await (attempt ? transaction.commit() : transaction.abort())
      }
      resolveOffset(batch.lastOffset())
      done += batch.messages.length
    }
    const run = { autoCommit: false, eachBatchAutoResolve: false, eachMessage: undefined, eachBatch }
    const member = await cluster.member(group, source, undefined, { maxBytesPerPartition: 200 }, run)
    try {
      await until('all is transformed', () => done === 60)
    } finally {
      await member.leave()
    }
  })
  let offsets = []
  // A commit is acknowledged before its markers (docs/semantics.md T11), and kafkajs does not ask for stable offsets.
  await until('the last commit is visible', async () => {
    const [found] = await cluster.admin.fetchOffsets({ groupId: group, topics: [source] })
    offsets = found.partitions.sort((one, two) => one.partition - two.partition).map(({ offset }) => Number(offset))
    return offsets[0] + offsets[1] === 60
  })
  return { transactions, offsets, committed: await cluster.read(target, 2) }
}
