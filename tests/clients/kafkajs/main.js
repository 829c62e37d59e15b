'use strict'
// Runs cases side by side: `main.js bootstrap-servers case ...`.  A case is a function that one of the files exports; it is given
// the cluster and returns what the client saw, which is printed as one line of JSON.

const { Cluster } = require('./cluster')

const CASES = {
  ...require('./transactions'),
  ...require('./groups'),
  ...require('./offsets'),
  ...require('./administration'),
}

// Each case has an admin client of its own: one that learns of an unknown topic forgets those that others asked for meanwhile.
const report = async (name, bootstrap) => {
  try {
    if (!CASES[name]) throw new Error('the program for kafkajs has no case of this name')
    const cluster = await Cluster.connect(bootstrap)
    const saw = await CASES[name](cluster)
    await cluster.close()
    return { case: name, saw }
  } catch (error) {
    return { case: name, failed: `${error.type || ''} ${error.stack}` }
  }
}

const main = async ([bootstrap, ...names]) => {
  process.stdin.on('end', () => process.exit(0)).resume() // it ends with the tests
  await Promise.all(names.map(async name => console.log(JSON.stringify(await report(name, bootstrap)))))
  process.exit(0)
}

main(process.argv.slice(2))
