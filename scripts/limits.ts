/**
 * What the embedded store costs at its limits, in four figures: the longest stall of the event loop
 * while it grows from nothing to the default PLANTS_MAX_DATA_BYTES with compactions going on;
 * memory and disk at their peak meanwhile; and the start of the service with 1,000,000 plants from
 * a snapshot alone, and from that and the longest journal there can be.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { StoreFull } from '../dist/plants/store.js'
import { PlantDatabase, type Row } from '../dist/store/sqljs/database.js'
import { nodeFiles } from '../dist/store/sqljs/files.js'
import { batchLine, headerLine, journalName } from '../dist/store/sqljs/journal-format.js'
import { SNAPSHOT, writeSnapshot } from '../dist/store/sqljs/snapshot.js'
import { SqljsStore } from '../dist/store/sqljs/store.js'
import { AUDIENCE, ISSUER, SECRET, token } from '../test/support/tokens.ts'

const MIB = 1024 * 1024
const MAX_DATA_BYTES = 256 * MIB
const CLIENTS = 64
const PLANTS = 1_000_000
/**
 * Plants in a group of the longest journal: 64 clients make groups of about half that number, one
 * client groups of one.
 */
const GROUPS = [1, 32] as const
const MAIN = new URL('../dist/main.js', import.meta.url).pathname

const work = mkdtempSync(join(tmpdir(), 'plant-store-limits-'))
process.on('exit', () => rmSync(work, { recursive: true, force: true }))

await grow()
const snapshotBytes = await million()
for (const plantsAGroup of GROUPS) {
  const plants = await longestJournal(snapshotBytes, plantsAGroup)
  await start(
    `1,000,000 plants in the snapshot and ${plants} in the journal, ${plantsAGroup} a group`,
  )
}

/** As main.ts does: what is measured is the service's store. */
async function grow(): Promise<void> {
  setFlagsFromString('--wasm-tiering-budget=200000000')
  const directory = join(work, 'grow')
  let compactions = 0
  const store = await SqljsStore.open({
    directory,
    maxDataBytes: MAX_DATA_BYTES,
    log: (level, message) => {
      if (message === 'compacted') compactions += 1
      else if (level === 'error') console.log(message)
    },
    onFatal(error) {
      throw error
    },
  })
  let [stallMs, rssBytes, diskBytes, before] = [0, 0, 0, performance.now()]
  const ticks = setInterval(() => {
    const now = performance.now()
    stallMs = Math.max(stallMs, now - before)
    before = now
  }, 1)
  const samples = setInterval(() => {
    rssBytes = Math.max(rssBytes, process.memoryUsage.rss())
    diskBytes = Math.max(diskBytes, sizeOf(directory))
  }, 50)
  let id = 0n
  let full = false
  const startedAt = performance.now()
  await Promise.all(
    Array.from({ length: CLIENTS }, async () => {
      while (!full) {
        id += 1n
        await store
          .create(`user-${id % 1000n}`, {
            id,
            name: `Monstera ${id} ${'x'.repeat(Number(id % 200n))}`,
            tag: 'indoor',
          })
          .catch((error: unknown) => {
            if (!(error instanceof StoreFull)) throw error
            full = true
          })
      }
    }),
  )
  const seconds = (performance.now() - startedAt) / 1000
  clearInterval(ticks)
  await sleep(3000)
  clearInterval(samples)
  console.log(
    `grown to ${MAX_DATA_BYTES / MIB} MiB: ${id} plants in ${seconds.toFixed(0)} s, ${compactions} compactions`,
  )
  console.log(`longest stall of the event loop ${stallMs.toFixed(1)} ms`)
  console.log(
    `memory at most ${(rssBytes / MIB).toFixed(0)} MiB, disk at most ${(diskBytes / MIB).toFixed(0)} MiB`,
  )
  await store.close()
}

/** A directory with a snapshot of 1,000,000 plants; returns its length in bytes. */
async function million(): Promise<number> {
  const directory = join(work, 'million')
  mkdirSync(directory)
  const database = await PlantDatabase.building()
  for (let at = 0; at < PLANTS; at += 10_000) database.insert(rows(at, 10_000), 1)
  const bytes = await writeSnapshot(
    nodeFiles,
    directory,
    SNAPSHOT,
    database.toFile({ sequence: 1, complete: true }),
    1,
  )
  database.close()
  await start('1,000,000 plants in the snapshot')
  return bytes
}

/**
 * Puts the longest journal beside the snapshot that no compaction is due for; returns how many
 * plants it holds.
 */
async function longestJournal(snapshotBytes: number, plantsAGroup: number): Promise<number> {
  const directory = join(work, 'million')
  const lines: Buffer[] = []
  let [plants, bytes, sequence] = [0, 0, 2]
  while (bytes < snapshotBytes - 64 * 1024) {
    const line = batchLine(sequence, rows(PLANTS + plants, plantsAGroup))
    lines.push(line)
    bytes += line.length
    plants += plantsAGroup
    sequence += 1
  }
  for (const name of readdirSync(directory)) if (name !== SNAPSHOT) rmSync(join(directory, name))
  writeFileSync(join(directory, journalName(1)), Buffer.concat([headerLine(2), ...lines]))
  return plants
}

function rows(first: number, count: number): Row[] {
  return Array.from(
    { length: count },
    (_, i): Row => [
      `user-${String((first + i) % 1000).padStart(4, '0')}`,
      String(first + i),
      `Monstera ${first + i}`,
      'indoor',
    ],
  )
}

/** Starts the service on a copy of the files as they are, three times, each ended at once. */
async function start(what: string): Promise<void> {
  const directory = join(work, 'million')
  const kept = readdirSync(directory).map(
    (name) =>
      [name, name.startsWith('lock-') ? undefined : readFileSync(join(directory, name))] as const,
  )
  const times: number[] = []
  const memories: number[] = []
  for (let round = 0; round < 3; round++) {
    const port = 19_600 + round
    const startedAt = performance.now()
    const env = {
      PATH: process.env['PATH'],
      PLANTS_LISTEN: `127.0.0.1:${port}`,
      PLANTS_ADMIN_LISTEN: 'off',
      PLANTS_DATA: directory,
      PLANTS_ISSUER: ISSUER,
      PLANTS_AUDIENCE: AUDIENCE,
      PLANTS_JWT_SECRET: SECRET,
    }
    const child = spawn(process.execPath, [MAIN, 'serve'], { stdio: 'ignore', env })
    while (!(await answers(port))) await sleep(2)
    times.push(performance.now() - startedAt)
    memories.push(
      Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) / 1024,
    )
    child.kill('SIGKILL')
    await once(child, 'exit')
    for (const name of readdirSync(directory)) rmSync(join(directory, name))
    for (const [name, bytes] of kept) if (bytes) writeFileSync(join(directory, name), bytes)
  }
  console.log(
    `start with ${what}: ${times.map((ms) => ms.toFixed(0)).join(', ')} ms to the first answer, memory at most ${Math.max(...memories).toFixed(0)} MiB`,
  )
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    get(
      {
        host: '127.0.0.1',
        port,
        path: '/plants?limit=1',
        agent: false,
        headers: { authorization: `Bearer ${token('user-0001')}` },
      },
      (res) => {
        res.resume()
        resolve(res.statusCode === 200)
      },
    ).on('error', () => resolve(false))
  })
}

function sizeOf(directory: string): number {
  let bytes = 0
  for (const name of readdirSync(directory)) {
    try {
      bytes += statSync(join(directory, name)).size
    } catch {
      // A file that was renamed or removed meanwhile.
    }
  }
  return bytes
}
