import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { createLog } from '../../dist/ops/log.js'
import { StoreFull } from '../../dist/plants/store.js'
import type { Row } from '../../dist/store/sqljs/database.js'
import { batchLine, headerLine, journalName } from '../../dist/store/sqljs/journal-format.js'
import { SNAPSHOT } from '../../dist/store/sqljs/snapshot.js'
import { SqljsStore } from '../../dist/store/sqljs/store.js'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { call } from '../../test/support/http.ts'
import { rowsOf, writeStore } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { bytesIn } from '../figures.ts'
import { mib, startMeasured } from './service.ts'

const MIB = 1024 * 1024
const MAX_DATA_BYTES = 256 * MIB
const CLIENTS = 64
const PLANTS = 1_000_000
/**
 * Plants of a batch in the longest journal: 64 clients make batches of about 32, one client of 1.
 */
const BATCHES = [1, 32] as const
const STARTS = 3

/**
 * The longest stall of the event loop while the store grows to the default PLANTS_MAX_DATA_BYTES
 * with compactions going on; memory and disk at their peak; and the start of the service with
 * 1,000,000 plants, from a snapshot alone and with the longest journal there can be.
 */
export async function measure(): Promise<void> {
  await grow()
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

async function grow(): Promise<void> {
  // As main.ts does: what is measured is the service's store.
  setFlagsFromString('--wasm-tiering-budget=200000000')
  const directory = join(temporaryDirectorySync(), 'data')
  let compactions = 0
  const store = await SqljsStore.open({
    directory,
    maxDataBytes: MAX_DATA_BYTES,
    log: {
      ...createLog('silent'),
      error: (message) => console.log(message),
      info(message) {
        if (message === 'compacted') compactions += 1
      },
    },
    onFatal(error) {
      throw error
    },
  })
  let [stallMs, rssBytes, diskBytes, lastMs] = [0, 0, 0, performance.now()]
  const ticks = setInterval(() => {
    const now = performance.now()
    stallMs = Math.max(stallMs, now - lastMs)
    lastMs = now
  }, 1)
  const samples = setInterval(() => {
    rssBytes = Math.max(rssBytes, process.memoryUsage.rss())
    diskBytes = Math.max(diskBytes, bytesIn(directory))
  }, 50)
  const startedAtMs = performance.now()
  const plants = await fillStore(store)
  const seconds = (performance.now() - startedAtMs) / 1000
  clearInterval(ticks)
  // The last compaction still runs.
  await sleep(3000)
  clearInterval(samples)
  await store.close()
  console.log(`grown to ${MAX_DATA_BYTES / MIB} MiB: ${plants} plants in ${seconds.toFixed(0)} s
longest stall of the event loop ${stallMs.toFixed(1)} ms, with ${compactions} compactions
memory at most ${mib(rssBytes / MIB)}, disk at most ${mib(diskBytes / MIB)}`)
}

/** Creates plants until the store is full. Returns how many it tried. */
async function fillStore(store: SqljsStore): Promise<bigint> {
  let id = 0n
  let isFull = false
  const client = async (): Promise<void> => {
    while (!isFull) {
      id += 1n
      const name = `Monstera ${id} ${'x'.repeat(Number(id % 200n))}`
      await store
        .create(`user-${id % 1000n}`, { id, name, tag: 'indoor' })
        .catch((error: unknown) => {
          if (!(error instanceof StoreFull)) throw error
          isFull = true
        })
    }
  }
  await Promise.all(Array.from({ length: CLIENTS }, client))
  return id
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
