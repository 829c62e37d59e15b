'use strict'
// Runs cases side by side: `main.js bootstrap-servers case ...`.  A case is a function that cases.js exports; it is given the
// cluster and returns what the client saw, which is printed as one line of JSON.  Its clients end with the process: one that is
// closed while it connects would take the process with it.

const CASES = require('./cases')
const { Cluster } = require('./cluster')

const causes = error => [error.stack, ...[...(error.errors || []), error.cause].filter(Boolean).map(causes)].join('\n')

const report = async (name, bootstrap) => {
  const cluster = new Cluster(bootstrap)
  try {
    if (!CASES[name]) throw new Error('the program for @platformatic/kafka has no case of this name')
    return { case: name, saw: await CASES[name](cluster) }
  } catch (error) {
    return { case: name, failed: causes(error) }
  }
}

const main = async ([bootstrap, ...names]) => {
  process.stdin.on('end', () => process.exit(0)).resume() // it ends with the tests
  await Promise.all(names.map(async name => console.log(JSON.stringify(await report(name, bootstrap)))))
  process.exit(0)
}

main(process.argv.slice(2))
