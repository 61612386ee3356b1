/*
 * Kills the built service with SIGKILL, again and again, under concurrent writers, and checks after
 * each start that nothing acknowledged is lost and nothing else appears. A start, a compaction and
 * a stop take little time and hold most of the danger, so most kills are aimed at them.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { exitOnSignals } from '../test/support/launch.ts'
import { randomSeed } from '../test/support/random.ts'
import { Choices } from './crash/choices.ts'
import { Place, totals } from './crash/place.ts'
import { wholeNumber } from './variables.ts'

/** After this many rounds or characters a new directory is used: each start reads all of it. */
const DIRECTORY_ROUNDS = 25
const DIRECTORY_CHARS = 16 * 1024 * 1024

const rounds = wholeNumber('ROUNDS', 50)
const seed = wholeNumber('SEED', randomSeed(), 0)
const choices = new Choices(seed)

/** Rounds on one directory. Returns how many, or throws with the directory left as it is. */
async function useDirectory(roundsLeft: number): Promise<number> {
  const root = await mkdtemp(join(tmpdir(), 'plant-store-crash-'))
  const place = new Place(join(root, 'data'), choices)
  const { ledger } = place
  const throwProblems = (): void => {
    if (ledger.problems.length === 0) return
    throw new Error(`${ledger.problems.slice(0, 20).join('\n')}\nthe directory is left: ${root}`)
  }
  const max = Math.min(roundsLeft, DIRECTORY_ROUNDS)
  let done = 0
  try {
    for (; done < max && ledger.chars < DIRECTORY_CHARS; done++) {
      await place.round()
      throwProblems()
    }
    await place.leave()
    throwProblems()
  } finally {
    totals.acknowledged += ledger.acknowledged
    totals.lost += ledger.lost
  }
  await rm(root, { recursive: true })
  return done
}

async function main(): Promise<number> {
  console.log(`${rounds} rounds, seed ${seed}`)
  const startedAtMs = performance.now()
  let done = 0
  let status = 0
  try {
    while (done < rounds) done += await useDirectory(rounds - done)
  } catch (error) {
    status = 1
    console.error(error)
  }
  const { acknowledged, lost, compactions, recoveryMs } = totals
  const { killedCompacting, killedStarting, killedStopping } = totals
  const seconds = Math.round((performance.now() - startedAtMs) / 1000)
  console.log(`rounds ${done}, compactions ${compactions}
plants acknowledged ${acknowledged}, lost ${lost}
kills in a compaction ${killedCompacting}, a start ${killedStarting}, a stop ${killedStopping}
longest recovery ${Math.ceil(recoveryMs)} ms, ${seconds} s in all, seed ${seed}`)
  return status
}

exitOnSignals()
// A service that an error left running must not keep this process alive.
process.exit(await main())
