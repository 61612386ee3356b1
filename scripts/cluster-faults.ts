/*
 * Several instances of the built service over three members of a real etcd, under concurrent
 * clients, while members are killed, paused and isolated, answers are dropped, and the quorum is
 * lost and comes back. Some clients send bursts, so that an instance puts many plants in one
 * transaction. Everything that clients see is checked: what was acknowledged is in every later
 * list, a plant that was answered 409 is never listed, and no owner sees another's plants.
 */
import { NO_ETCD } from '../test/support/etcd.ts'
import { faultRun } from '../test/support/etcd-run.ts'
import { randomSeed } from '../test/support/random.ts'
import { wholeNumber } from './variables.ts'

const seed = process.env['SEED'] || String(randomSeed())
const faults = wholeNumber('FAULTS', 16)
const instances = wholeNumber('INSTANCES', 3)

async function main(): Promise<number> {
  if (NO_ETCD !== undefined) {
    console.error(NO_ETCD)
    return 2
  }
  console.log(`${faults} faults, ${instances} instances, seed ${seed}`)
  const startedAt = performance.now()
  const run = await faultRun({ seed, faults, instances, tell: (line) => console.log(line) })
  for (const problem of run.problems.slice(0, 20)) console.error(problem)
  const made = Object.entries(run.faults)
  for (const [kind, times] of made.sort()) console.log(`${times} × ${kind}`)
  const count = made.reduce((sum, [, times]) => sum + times, 0)
  console.log(
    `${run.operations} operations: ${run.acknowledged} plants acknowledged, ` +
      `${run.conflicts} conflicts, ${run.open} creates left open; ` +
      `${run.lists} lists, of which ${run.listsRefused} were refused; ` +
      `${run.droppedAnswers} answers of etcd dropped; ` +
      `${run.groups} transactions of 2 to ${run.largestGroup} plants\n` +
      `${count} faults, longest recovery ${Math.round(run.longestRecoveryMs)} ms, ` +
      `violations ${run.problems.length}\n` +
      `${Math.round((performance.now() - startedAt) / 1000)} s in all, seed ${seed}`,
  )
  return run.problems.length === 0 ? 0 : 1
}

process.exitCode = await main()
