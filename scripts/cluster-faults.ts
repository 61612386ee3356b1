/*
 * Several instances of the built service over three members of a real etcd, under concurrent
 * clients, while members are killed, paused and cut off, answers are dropped, the quorum goes and
 * comes back. All that clients see is held against the model: what was acknowledged is in every
 * later list, a 409 never turns into a plant, one content wins, and owners never meet.
 */
import { parseArgs } from 'node:util'
import { NO_ETCD } from '../test/support/etcd.ts'
import { faultRun } from '../test/support/etcd-run.ts'

const { values } = parseArgs({
  options: {
    faults: { type: 'string', default: '32' },
    instances: { type: 'string', default: '3' },
    seed: { type: 'string' },
  },
})
const seed = values.seed ?? String(Math.floor(Math.random() * 2 ** 31))
const [faults, instances] = [Number(values.faults), Number(values.instances)]

async function main(): Promise<number> {
  if (![faults, instances].every((value) => Number.isSafeInteger(value) && value > 0)) {
    console.error('--faults and --instances must be whole numbers, 1 or more')
    return 2
  }
  if (NO_ETCD !== undefined) {
    console.error(NO_ETCD)
    return 2
  }
  console.log(`${faults} faults, ${instances} instances, seed ${seed}`)
  const startedAt = performance.now()
  const {
    problems,
    faults: made,
    ...totals
  } = await faultRun({ seed, faults, instances, tell: (line) => console.log(line) })
  for (const problem of problems.slice(0, 20)) console.error(problem)
  console.log(
    Object.entries(made)
      .map(([kind, times]) => `${times} × ${kind}`)
      .sort()
      .join('\n'),
  )
  const {
    operations,
    acknowledged,
    conflicts,
    open,
    lists,
    listsRefused,
    droppedAnswers,
    longestRecoveryMs,
  } = totals
  console.log(`${operations} operations: ${acknowledged} plants acknowledged, ${conflicts} conflicts, ${open} creates left open; ${lists} lists, of which ${listsRefused} were refused; ${droppedAnswers} answers of etcd dropped
${Object.values(made).reduce((sum, times) => sum + times, 0)} faults, longest recovery ${Math.round(longestRecoveryMs)} ms, violations ${problems.length}
${Math.round((performance.now() - startedAt) / 1000)} s in all, seed ${seed}`)
  return problems.length === 0 ? 0 : 1
}

process.exitCode = await main()
