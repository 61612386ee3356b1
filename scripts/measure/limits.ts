import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Row } from '../../dist/store/sqljs/journal-format.js'
import { batchLine, headerLine, journalName } from '../../dist/store/sqljs/journal-format.js'
import { SNAPSHOT } from '../../dist/store/sqljs/snapshot.js'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { call } from '../../test/support/http.ts'
import { rowsOf, writeStore } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { mib, startMeasured } from './service.ts'

const PLANTS = 1_000_000
/**
 * Plants of a batch in the longest journal: 64 clients make batches of about 32, one client of 1.
 */
const BATCHES = [1, 32] as const
const STARTS = 3

/** The start with 1,000,000 plants: from a snapshot alone, and with the longest journal too. */
export async function measure(): Promise<void> {
  const directory = temporaryDirectorySync()
  await writeStore(directory, rowsOf(PLANTS, row))
  await start(directory, '1,000,000 plants in the snapshot')
  for (const size of BATCHES) {
    const plants = await addLongestJournal(directory, size)
    await start(directory, `1,000,000 plants in the snapshot and ${plants} in batches of ${size}`)
  }
}

function row(index: number): Row {
  const owner = `user-${String(index % 1000).padStart(4, '0')}`
  return [owner, String(index), `Monstera ${index}`, 'indoor']
}

/**
 * Adds the longest journal for which no compaction is due: a third as long as the snapshot. Returns
 * how many plants it holds.
 */
async function addLongestJournal(directory: string, batchPlants: number): Promise<number> {
  const dueBytes = statSync(join(directory, SNAPSHOT)).size / 3
  const lines: Buffer[] = []
  let [plants, bytes] = [0, 0]
  for (let sequence = 2; bytes < dueBytes - 64 * 1024; sequence++) {
    const first = PLANTS + plants
    const line = batchLine(sequence, [...rowsOf(batchPlants, (at) => row(first + at))])
    lines.push(line)
    bytes += line.length
    plants += batchPlants
  }
  for (const name of readdirSync(directory)) if (name !== SNAPSHOT) rmSync(join(directory, name))
  writeFileSync(join(directory, journalName(1)), Buffer.concat([headerLine(2), ...lines]))
  return plants
}

/** Starts the service several times, each time from the same files, and kills it. */
async function start(directory: string, what: string): Promise<void> {
  const names = readdirSync(directory).filter((name) => !name.startsWith('lock-'))
  const files = names.map((name) => [name, readFileSync(join(directory, name))] as const)
  const times: string[] = []
  let peakMiB = 0
  for (let round = 0; round < STARTS; round++) {
    const startedAtMs = performance.now()
    const service = await startMeasured(directory)
    const options = { path: '/plants?limit=1', token: token('user-0001') }
    const { status } = await call(service.port, options)
    if (status !== 200) throw new Error(`the first answer was ${status}`)
    times.push((performance.now() - startedAtMs).toFixed(0))
    peakMiB = Math.max(peakMiB, service.memory().peakMiB)
    await service.kill('SIGKILL')
    for (const name of readdirSync(directory)) rmSync(join(directory, name))
    for (const [name, bytes] of files) writeFileSync(join(directory, name), bytes)
  }
  const shown = `${times.join(', ')} ms to the first answer, memory at most ${mib(peakMiB)}`
  console.log(`start with ${what}: ${shown}`)
}
