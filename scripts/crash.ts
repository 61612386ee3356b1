/*
 * Kills the built service with SIGKILL, again and again, under concurrent writers, and checks after
 * each start that nothing acknowledged is lost and nothing else appears. A start, a compaction and
 * a stop take little time and hold most of the danger, so most kills are aimed at them.
 */
import { join } from 'node:path'
import { exitOnSignals } from '../test/support/launch.ts'
import { randomSeed } from '../test/support/random.ts'
import { Choices } from './crash/choices.ts'
import { Place, totals } from './crash/place.ts'
import { wholeNumber } from './variables.ts'
import { inDirectory } from './watched.ts'

/** After this many rounds or characters a new directory is used: each start reads all of it. */
const DIRECTORY_ROUNDS = 25
const DIRECTORY_CHARS = 16 * 1024 * 1024

const rounds = wholeNumber('ROUNDS', 50)
const seed = wholeNumber('SEED', randomSeed(), 0)
const choices = new Choices(seed)
let done = 0

/** Rounds on one directory, until something is wrong. Returns what is. */
async function useDirectory(root: string): Promise<readonly string[]> {
  const place = new Place(join(root, 'data'), choices)
  const { ledger } = place
  const { problems } = ledger
  const end = Math.min(rounds, done + DIRECTORY_ROUNDS)
  try {
    for (; done < end && ledger.chars < DIRECTORY_CHARS && problems.length === 0; done++)
      await place.round()
    if (problems.length === 0) await place.leave()
  } finally {
    totals.acknowledged += ledger.acknowledged
    totals.lost += ledger.lost
  }
  return problems
}

exitOnSignals()
console.log(`${rounds} rounds, seed ${seed}`)
const startedAtMs = performance.now()
let wrong = 0
while (done < rounds && wrong === 0) wrong = await inDirectory('crash', useDirectory)
const { acknowledged, lost, compactions, recoveryMs } = totals
const { killedCompacting, killedStarting, killedStopping } = totals
const seconds = Math.round((performance.now() - startedAtMs) / 1000)
console.log(`rounds ${done}, compactions ${compactions}
plants acknowledged ${acknowledged}, lost ${lost}
kills in a compaction ${killedCompacting}, a start ${killedStarting}, a stop ${killedStopping}
longest recovery ${Math.ceil(recoveryMs)} ms, ${seconds} s in all, seed ${seed}`)
// A service that an error left running must not keep this process alive.
process.exit(wrong === 0 ? 0 : 1)
