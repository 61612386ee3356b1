import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { appendFileSync, mkdirSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { copyFile, writeFile } from 'node:fs/promises'
import { getPriority } from 'node:os'
import { basename, join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { crc32 } from 'node:zlib'
import { compact, type CompactionJob } from '../../../dist/store/sqljs/compaction.js'
import { compactInWorker } from '../../../dist/store/sqljs/compaction-thread.js'
import { errorCodeOf, reasonOf } from '../../../dist/errors.js'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { PlantDatabase } from '../../../dist/store/sqljs/database.js'
import type { Row } from '../../../dist/store/sqljs/journal-format.js'
import { scanDirectory } from '../../../dist/store/sqljs/directory-scan.js'
import { type File, type Files, nodeFiles } from '../../../dist/store/sqljs/files.js'
import {
  batchLine,
  headerLine,
  journalName,
  journalNumber,
  StoreCorrupt,
} from '../../../dist/store/sqljs/journal-format.js'
import { lockDirectory } from '../../../dist/store/sqljs/lock.js'
import { StoreDirectory } from '../../../dist/store/sqljs/store-directory.js'
import { replay } from '../../../dist/store/sqljs/recovery.js'
import { compactFiles } from '../../../dist/store/sqljs/settings.js'
import { SNAPSHOT } from '../../../dist/store/sqljs/snapshot.js'
import type { SqljsStore, SqljsStoreOptions } from '../../../dist/store/sqljs/store.js'
import { checkStore } from '../../../dist/cli/check.js'
import { exportStore } from '../../../dist/cli/export.js'
import { importStore } from '../../../dist/cli/import.js'
import { plant, shown } from '../../contract/store.contract.ts'
import { type Fault, simulatedFiles, textLength } from '../../faults/simulated-disk.ts'
import { THOROUGH } from '../../support/scale.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import {
  directoryOf,
  filesLeftByKill,
  filesOf,
  firstSnapshotOnly,
  IN_MEMORY,
  killedAfter,
  list,
  type LogLine,
  memoryDisk,
  openStore,
  plantsTo,
} from './fixtures.ts'

const NEVER = {
  compact: firstSnapshotOnly,
  retryMs: { write: 1, compaction: 1 },
} as const
/** Room for all the lines of a test. */
const PADDED = { paddingBytes: 1000 } as const
const names = (count: number): { readonly name: string }[] =>
  Array.from({ length: count }, (_, i) => ({ name: `plant ${i + 1}` }))

/** What was closed, checked and opened again after a write, by the digest of the disk. */
const reopened = new Set<string>()

/**
 * Opens such a directory, compares it and writes to it. Then closes it, checks it and opens it
 * again, unless another start left the same bytes: these do not depend on anything else. What a
 * torn line held must be kept. Returns what was logged of it.
 */
async function opensWith(
  contents: ReadonlyMap<string, Uint8Array>,
  count: number,
): Promise<LogLine[]> {
  const disk = memoryDisk(contents)
  let fault: Fault | undefined
  const files = simulatedFiles(disk, { onCall: () => fault, onWriting: () => {} })
  const options = { files, compact: (job: CompactionJob) => compact(files, job) }
  const lines: LogLine[] = []
  const store = await openStore(IN_MEMORY, options, lines)
  assert.deepEqual(await list(store), names(count))
  const torn = lines.filter(({ message }) => message.includes('torn'))
  for (const { fields } of torn) {
    const [file, byte, bytes] = ['file', 'byte', 'bytes'].map((name) => fields?.[name])
    const journal = contents.get(basename(String(file))) ?? assert.fail()
    assert.deepEqual(
      await files.read(String(fields?.['kept'])),
      Buffer.from(journal.subarray(Number(byte), Number(byte) + Number(bytes))),
    )
  }
  assert.equal(await store.create('alice', plant(1000n, 'new')), 'stored')
  const left = `${count} ${disk.digest()}`
  // A close that cannot write is faster.
  if (reopened.has(left)) fault = { code: 'EIO', how: 'refused' }
  await store.close()
  if (fault) return torn
  reopened.add(left)
  await checkStore(IN_MEMORY, files)
  const again = await openStore(IN_MEMORY, options)
  assert.deepEqual(await list(again), [...names(count), { name: 'new' }])
  await again.close()
  return torn
}

/** Reads a directory as `checkStore` does, but once instead of five times if it is damaged. */
async function readOnce(directory: string, files: Files): Promise<void> {
  await scanDirectory(new StoreDirectory(files, directory), async (scan) => {
    const database = await PlantDatabase.serving(scan.snapshot)
    try {
      await replay(scan, database)
    } finally {
      database.close()
    }
  })
}

/** The long form asks `checkStore` for each byte, the short form for each sixteenth. */
function checkAt(at: number): (directory: string, files: Files) => Promise<unknown> {
  return THOROUGH || at % 16 === 0 ? checkStore : readOnce
}

/** Refuses such a directory, names one of its files and where in it, and changes nothing. */
async function refuses(
  contents: ReadonlyMap<string, Uint8Array>,
  file: string,
  what = /./,
  check: (directory: string, files: Files) => Promise<unknown> = checkStore,
): Promise<void> {
  const files = simulatedFiles(memoryDisk(contents))
  await assert.rejects(openStore(IN_MEMORY, { files }), (error) => {
    assert.ok(error instanceof StoreCorrupt, String(error))
    assert.ok(error.message.startsWith(`${IN_MEMORY}/${file} is damaged at byte `), error.message)
    assert.match(error.message, what)
    return true
  })
  assert.deepEqual(
    await filesOf(IN_MEMORY, files),
    new Map([...contents].toSorted(([a], [b]) => (a < b ? -1 : 1))),
  )
  await assert.rejects(check(IN_MEMORY, files), StoreCorrupt)
}

function without(
  files: ReadonlyMap<string, Buffer>,
  ...gone: readonly string[]
): Map<string, Buffer> {
  return new Map([...files].filter(([name]) => !gone.includes(name)))
}

function lineEnds(journal: Buffer): number[] {
  return [...journal.entries()].filter(([, byte]) => byte === 10).map(([at]) => at + 1)
}

const FIRST = 'journal-00000001.log'

/**
 * Three closed journals, whose compaction never came to pass, and the one in use with two writes.
 */
async function severalJournals(): Promise<Map<string, Buffer>> {
  const files = await killedAfter(plantsTo(3n), { ...NEVER, compactBytes: 1 })
  assert.ok(files.size >= 4 && files.has(SNAPSHOT), [...files.keys()].join())
  return files
}

test('recovery: a journal cut at any byte has all writes before it, or is refused', async () => {
  for (const snapshot of [true, false]) {
    const files = await killedAfter(plantsTo(3n))
    // As a killed 2.0.0 left it.
    if (!snapshot) files.delete(SNAPSHOT)
    const journal = files.get(FIRST) ?? Buffer.alloc(0)
    const ends = lineEnds(journal)
    assert.equal(ends.length, 4)
    for (let length = 0; length <= journal.length; length++) {
      const cut = journal.subarray(0, length)
      files.set(FIRST, cut)
      const whole = ends.filter((end) => end <= length)
      const goodBytes = whole.at(-1) ?? 0
      if (goodBytes === 0) {
        await refuses(files, FIRST, /its first line is not that of a journal/, checkAt(length))
        continue
      }
      const torn = await opensWith(files, whole.length - 1)
      const tornBytes = length - goodBytes
      assert.deepEqual(
        torn.map(({ level, fields }) => [level, fields?.['byte'], fields?.['bytes']]),
        tornBytes > 0 ? [['error', goodBytes, tornBytes]] : [],
        `cut at ${length}`,
      )
      for (const { fields } of torn)
        assert.match(String(fields?.['file']), /journal-00000001\.log$/)
    }
  }
})

test('recovery: any byte flipped: the last line is left out, others are refused', async (t) => {
  const files = await killedAfter(plantsTo(2n))
  const journal = files.get(FIRST) ?? Buffer.alloc(0)
  const lastAt = lineEnds(journal).at(-2) ?? 0
  for (let at = 0; at < journal.length; at++) {
    const flipped = Buffer.from(journal)
    flipped[at] = (journal[at] ?? 0) ^ 0x80
    files.set(FIRST, flipped)
    if (at >= lastAt) assert.equal((await opensWith(files, 1)).length, 1)
    else await refuses(files, FIRST, /./, checkAt(at))
  }
  t.diagnostic(`${journal.length} flips`)
})

test('recovery: a closed journal, cut or flipped at any byte, is refused', async (t) => {
  const files = await severalJournals()
  const journal = files.get(FIRST) ?? Buffer.alloc(0)
  for (let at = 0; at < journal.length; at++) {
    const check = checkAt(at)
    const flipped = Buffer.from(journal)
    flipped[at] = (journal[at] ?? 0) ^ 0x01
    await refuses(new Map(files).set(FIRST, flipped), FIRST, /./, check)
    const cut = new Map(files).set(FIRST, journal.subarray(0, at))
    // Cut between two lines it is sound by itself; it is the next one that does not follow.
    const damaged = lineEnds(journal).includes(at) ? 'journal-00000002.log' : FIRST
    await refuses(cut, damaged, /./, check)
  }
  t.diagnostic(`${journal.length} flips, cut at ${journal.length} bytes`)
})

test('recovery: several journals are read in order, up to the last', async () => {
  await opensWith(await severalJournals(), 3)
})

test('recovery: padding of any length is read, in the last journal and closed ones', async () => {
  const files = await killedAfter(plantsTo(3n), { ...NEVER, ...PADDED, compactBytes: 1 })
  const journals = [...files.keys()].filter(
    (name) => name !== SNAPSHOT && files.get(name)?.at(-1) === 0,
  )
  assert.ok(journals.length >= 3 && journals.includes(FIRST), journals.join())
  assert.deepEqual(await opensWith(files, 3), [])
  // A kill or a power loss may leave any length of it.
  for (const length of [1, 100, 10_000])
    await opensWith(
      new Map(
        [...files].map(([name, bytes]) => [
          name,
          name === SNAPSHOT
            ? bytes
            : Buffer.concat([bytes.subarray(0, textLength(bytes)), Buffer.alloc(length)]),
        ]),
      ),
      3,
    )
})

test('recovery: closed lines that became zeros are missed', async () => {
  const files = await killedAfter(plantsTo(3n), { ...NEVER, ...PADDED, compactBytes: 1 })
  const journal = Buffer.from(files.get(FIRST) ?? '')
  await refuses(
    new Map(files).set(FIRST, journal.fill(0, lineEnds(journal)[0])),
    'journal-00000002.log',
    /what is before it ends with write 0/,
  )
})

test('recovery: what is cut off after a short write is synced before the next line', async () => {
  const calls: string[] = []
  let isShort = false
  const open: Files['open'] = async (path, mode) => {
    const file = await nodeFiles.open(path, mode)
    if (mode !== 'durable') return file
    const called = <T>(name: string, result: T): T => {
      calls.push(name)
      return result
    }
    return {
      ...file,
      write(bytes, at) {
        const taken = isShort ? bytes.subarray(0, 3) : bytes
        isShort = false
        return called('write', file.write(taken, at))
      },
      truncate: (length) => called('truncate', file.truncate(length)),
      sync: () => called('sync', file.sync()),
    }
  }
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory, { files: { ...nodeFiles, open } })
  calls.length = 0
  isShort = true
  await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable)
  assert.equal(await store.create('alice', plant(2n, 'Oak')), 'stored')
  assert.deepEqual(calls, ['write', 'truncate', 'sync', 'write'])
  await store.close()
  const again = await openStore(directory)
  assert.deepEqual(await list(again), [{ name: 'Oak' }])
  await again.close()
})

test('recovery: a new store that can have no snapshot does not open', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const compact = (): Promise<never> => Promise.reject(new Error('no snapshot'))
  const fails = (why: RegExp) => (error: unknown) => why.test(reasonOf(error))
  await assert.rejects(openStore(directory, { compact }), fails(/make room.*: no snapshot$/))
  const files: Files = {
    ...nodeFiles,
    open: (path, mode) =>
      mode === 'temporary' && path.includes('journal')
        ? Promise.reject(new Error('no journal'))
        : nodeFiles.open(path, mode),
  }
  const other = `${await temporaryDirectory()}/data`
  await assert.rejects(openStore(other, { files }), fails(/make room.*: no journal/))
  for (const each of [directory, other]) {
    const store = await openStore(each)
    assert.equal(await store.create('alice', plant(1n, 'Oak')), 'stored')
    await store.close()
  }
})

test('recovery: an export over an older journal with a torn line takes creates', async () => {
  const older = await killedAfter(plantsTo(3n))
  const directory = await directoryOf(older)
  const store = await openStore(directory)
  for (const each of plantsTo(9n)) assert.equal(await store.create('alice', each), 'stored')
  await store.close()
  const file = `${directory}-export`
  await exportStore(directory, file)
  const torn = older.get(FIRST)?.subarray(0, -4) ?? assert.fail()
  const contents = new Map([[FIRST, torn]]).set('plants.sqlite', readFileSync(file))
  assert.deepEqual(await opensWith(contents, 9), [])
})

test('recovery: a second torn line of one sequence leaves what is kept of the first', async () => {
  const files = await killedAfter(plantsTo(2n))
  const directory = await directoryOf(files)
  const killed: SqljsStore[] = []
  for (const torn of ['first', 'second']) {
    appendFileSync(`${directory}/${FIRST}`, torn)
    const store = await openStore(directory, NEVER)
    killed.push(store)
    assert.deepEqual(await list(store), names(2))
  }
  const kept = readdirSync(directory).filter((name) => name.startsWith('torn-3-'))
  const contents = kept.map((name) => readFileSync(`${directory}/${name}`, 'utf8'))
  assert.deepEqual(contents.toSorted(), ['first', 'second'])
  for (const store of killed) await store.close()
})

test('recovery: a line torn in the padding is put aside, and its length is logged', async () => {
  const files = await killedAfter(plantsTo(3n), PADDED)
  const journal = files.get(FIRST) ?? Buffer.alloc(0)
  const [, , from = 0, end = 0] = lineEnds(journal)
  for (const [zerosFrom, zerosTo, tornBytes] of [
    [from + 10, end, 10],
    [from, from + 10, end - from],
    [from + 10, from + 20, end - from],
    [end - 1, end, end - from - 1],
    [from, end, 0],
  ] as const) {
    const torn = new Map(files).set(FIRST, Buffer.from(journal).fill(0, zerosFrom, zerosTo))
    const lines = await opensWith(torn, 2)
    assert.deepEqual(
      lines.map(({ fields }) => [fields?.['byte'], fields?.['bytes']]),
      tornBytes === 0 ? [] : [[from, tornBytes]],
    )
  }
})

test('recovery: a reader that sees only a later line reads again, if a service runs', async () => {
  const directory = await directoryOf(await killedAfter(plantsTo(4n), PADDED))
  const lock = await lockDirectory(directory)
  for (const lost of [1, 2]) {
    let reads = 0
    const files: Files = {
      ...nodeFiles,
      async read(path, maxBytes) {
        const bytes = await nodeFiles.read(path, maxBytes)
        // Not when its header alone is read.
        if (!path.endsWith(FIRST) || maxBytes !== undefined || reads++ > 0) return bytes
        const ends = lineEnds(bytes)
        return bytes.fill(0, ends[1], ends[1 + lost])
      },
    }
    assert.match(await checkStore(directory, files), /4 plants/)
    assert.equal(reads, 2)
    reads = 0
    const file = `${await temporaryDirectory()}/export.sqlite`
    assert.match(await exportStore(directory, file, files), /4 plants/)
    assert.equal(reads, 2)
    if (lost === 1) continue
    await lock.release()
    reads = 0
    await assert.rejects(checkStore(directory, files), StoreCorrupt)
    assert.equal(reads, 1)
  }
})

test('recovery: a reader starts over if files come and go, and for no other error', async () => {
  const directory = await directoryOf(await severalJournals())
  /** How often a check reads the directory, and whether it finds it sound. */
  const readings = async (beforeJournal: () => Promise<void>): Promise<[number, boolean]> => {
    let count = 0
    const files: Files = {
      ...nodeFiles,
      open(path, mode) {
        // Each reading looks for a snapshot once.
        if (path.endsWith(SNAPSHOT)) count += 1
        return nodeFiles.open(path, mode)
      },
      async read(path, maxBytes) {
        if (maxBytes === undefined) await beforeJournal()
        return nodeFiles.read(path, maxBytes)
      },
    }
    const isSound = await checkStore(directory, files).then(
      () => true,
      () => false,
    )
    return [count, isSound]
  }
  // ENOENT: a link that leads nowhere.
  for (const code of ['EIO', 'EACCES', 'EMFILE', 'ENOENT'])
    assert.deepEqual(await readings(() => Promise.reject(failure(code))), [1, false], code)
  // A running service explains damage, and no failing disk.
  const lock = await lockDirectory(directory)
  for (const code of ['EIO', 'EACCES', 'EMFILE'])
    assert.deepEqual(await readings(() => Promise.reject(failure(code))), [1, false], code)
  await lock.release()
  // A service starts, removes journals and ends before anyone asks whether one runs.
  let hasRun = false
  const runService = async (): Promise<void> => {
    if (hasRun) return
    hasRun = true
    await (await openStore(directory, { lock: lockDirectory })).close()
  }
  assert.deepEqual(await readings(runService), [2, true])
})

function failure(code: string): Error {
  return Object.assign(new Error(code), { code })
}

test('recovery: a missing journal is noticed, first or in between', async () => {
  const files = await severalJournals()
  const journals = [...files.keys()].filter((name) => name !== SNAPSHOT)
  for (const [at, gone] of journals.slice(0, -1).entries()) {
    // A compaction that is tried again may begin a journal that gets no write.
    if (lineEnds(files.get(gone) ?? Buffer.alloc(0)).length === 1) continue
    await refuses(without(files, gone), at === 0 ? SNAPSHOT : (journals[at + 1] ?? ''))
    await refuses(without(files, gone, SNAPSHOT), journals[at + 1] ?? '')
  }
})

/** What 2.0.0 left without a snapshot, what a kill leaves after the first start, and a stop. */
async function onlyJournals(): Promise<readonly Map<string, Buffer>[]> {
  const killed = await killedAfter(plantsTo(9n))
  const directory = await directoryOf(killed)
  await (await openStore(directory)).close()
  const stopped = await filesOf(directory)
  assert.deepEqual([...killed.keys()], [FIRST, SNAPSHOT])
  assert.deepEqual([...stopped.keys()], [journalName(2), SNAPSHOT])
  return [killed, stopped]
}

test('recovery: the only journal lost is missed, after a kill and after a stop', async () => {
  for (const files of await onlyJournals()) {
    const [journal = ''] = files.keys()
    const missing = /the journal that begins with write \d+ is missing; put the missing file back/
    await refuses(without(files, journal), SNAPSHOT, missing)
  }
})

test('recovery: the only journal emptied or cut in its header is damage', async () => {
  for (const files of await onlyJournals()) {
    const [journal = ''] = files.keys()
    const bytes = files.get(journal) ?? assert.fail()
    for (let length = 0; length < (lineEnds(bytes)[0] ?? 0); length++)
      for (const padding of [0, 100]) {
        const cut = Buffer.concat([bytes.subarray(0, length), Buffer.alloc(padding)])
        await refuses(new Map(files).set(journal, cut), journal, /first line/, checkAt(length))
      }
  }
})

test('recovery: a header that is not whole is damage in any journal', async () => {
  const files = await severalJournals()
  const journals = [...files.keys()].filter((name) => name !== SNAPSHOT)
  for (const name of [...journals, journalName(99)])
    for (const begun of ['', 'plant-store-jour', 'plant-store-journal 1 3 00000000', '\n'])
      await refuses(new Map(files).set(name, Buffer.from(begun)), name, /its first line/)
})

test('recovery: a new store has its snapshot and its journal before its first plant', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory)
  assert.deepEqual([...(await filesOf(directory)).keys()], [FIRST, SNAPSHOT])
  await store.close()
  // A stop without a plant, a start, and a stop: nothing is written again.
  const before = await filesOf(directory)
  await (await openStore(directory, { compact: () => assert.fail('not asked for') })).close()
  assert.deepEqual(await filesOf(directory), before)
  assert.match(await checkStore(directory), /0 plants in a snapshot and 1 journal, up to write 0/)
})

test('recovery: an export that was put back is compacted at once, with its journal', async () => {
  const origin = await directoryOf(await killedAfter(plantsTo(3n)))
  const directory = `${await temporaryDirectory()}/data`
  mkdirSync(directory)
  await exportStore(origin, `${directory}-export`)
  await copyFile(`${directory}-export`, `${directory}/${SNAPSHOT}`)
  const lines: LogLine[] = []
  const store = await openStore(directory, {}, lines)
  await until('it is compacted', () => lines.some(({ message }) => message === 'compacted'))
  const killed = filesLeftByKill(directory)
  await store.close()
  await opensWith(killed, 3)
  const [journal = ''] = killed.keys()
  await refuses(without(killed, journal), SNAPSHOT, /the journal that begins with write 4/)
})

test('compaction: a snapshot with another number of plants removes no journal', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  const retryMs = { write: 1, compaction: 1 }
  let counted = 0
  const store = await openStore(
    directory,
    {
      compactBytes: 1,
      retryMs,
      // It claims to be done, as a thread would whose memory is damaged.
      async compact(job) {
        if (job.sequence === 0) return compact(nodeFiles, job)
        counted += 1
        return { bytes: 1, plants: job.plants - 1 }
      },
    },
    lines,
  )
  for (const each of plantsTo(3n)) await store.create('alice', each)
  await until('it is tried again', () => counted > 1)
  const files = filesLeftByKill(directory)
  assert.ok(files.has(FIRST))
  await opensWith(files, 3)
  assert.match(
    String(lines.at(-1)?.fields?.['error']),
    /the new snapshot has \d+ plants instead of/,
  )
  await store.close()
  assert.ok((await filesOf(directory)).has(FIRST))
  const job = { directory, upToJournal: 1, sequence: 1, plants: 2, ...UNKNOWN }
  await assert.rejects(compact(nodeFiles, job), /have 2 plants up to write 1, and have 1 up to/)
})

test('recovery: a last journal that holds no write yet is used', async () => {
  const files = await killedAfter(plantsTo(2n), { compactBytes: 1 })
  assert.ok(files.has('plants.sqlite'))
  await opensWith(files, 2)
})

test('recovery: an incomplete snapshot and its journals need each other', async () => {
  const files = await killedAfter(plantsTo(2n), { compactBytes: 1 })
  assert.ok(!files.has(FIRST))
  const journals = [...files.keys()].filter((name) => name.startsWith('journal-'))
  await refuses(
    without(files, ...journals),
    'plants.sqlite',
    /the journal that begins with write \d+ is missing; put the missing file back, or move/,
  )
  const missing = /a file is missing; put the missing file back, or move .* import the last export$/
  await refuses(without(files, 'plants.sqlite'), journals[0] ?? '', missing)
  const twice = await severalJournals()
  const first = twice.get(FIRST) ?? assert.fail()
  // The next journal begins with write 2 too.
  twice.set(FIRST, Buffer.concat([first, batchLine(2, [['alice', '2', 'Oak']])]))
  const other = /with write 2: a file of another store or time is there; move all files/
  await refuses(twice, 'journal-00000002.log', other)
})

test('recovery: a crash between snapshot rename and journal removal replays no write', async () => {
  const before = await severalJournals()
  const directory = await directoryOf(before)
  await (await openStore(directory)).close()
  const after = await filesOf(directory)
  assert.deepEqual(after.size, 2)
  const journals = [...before].filter(([name]) => name !== SNAPSHOT)
  // On a slow machine there are more, and all subsets of those would take too long.
  for (let bits = 0; bits < 2 ** Math.min(journals.length, 5); bits++)
    await opensWith(new Map([...after, ...journals.filter((_, i) => (bits >> i) & 1)]), 3)
})

test('recovery: covered journals are removed unread, even if they are damaged', async () => {
  const files = await killedAfter(plantsTo(3n), { compactBytes: 1 })
  const last = [...files.keys()].filter((name) => name.startsWith('journal-')).at(-1) ?? ''
  const text = 'plant-store-journal 1 1'
  const covered = Buffer.from(`${text} ${crc32(text).toString(16).padStart(8, '0')}\nnot a line\n`)
  assert.ok(last > FIRST)
  await opensWith(new Map(files).set(FIRST, covered), 3)
})

test('recovery: another version of a journal is refused and named', async () => {
  const text = 'plant-store-journal 2 1'
  await refuses(
    new Map([[FIRST, Buffer.from(`${text} ${crc32(text).toString(16).padStart(8, '0')}\n`)]]),
    FIRST,
    /it has version 2, .*; use the release that wrote it, or a newer one$/,
  )
})

test('recovery: files that a crash left half written are removed', async () => {
  const files = await killedAfter(plantsTo(2n))
  const directory = await directoryOf(
    new Map(files)
      .set('plants.sqlite.tmp', Buffer.from('half'))
      .set('journal-00000002.log.tmp', Buffer.from('half')),
  )
  const store = await openStore(directory)
  assert.deepEqual([...(await filesOf(directory)).keys()], [FIRST, SNAPSHOT])
  await store.close()
})

test('recovery: reopened after each write, killed or stopped, it holds everything', async () => {
  let directory = `${await temporaryDirectory()}/data`
  const left: SqljsStore[] = []
  for (let id = 1n; id <= 24n; id++) {
    const store = await openStore(directory, { compactBytes: id % 3n === 0n ? 1 : 2 ** 20 })
    assert.deepEqual(await list(store), names(Number(id) - 1))
    assert.equal(await store.create('alice', plant(id)), 'stored')
    if (id > 1n) assert.equal(await store.create('alice', plant(id - 1n)), 'stored')
    // However far a compaction has come meanwhile.
    await sleep(Number(id))
    if (id % 2n === 0n) await store.close()
    else {
      left.push(store)
      directory = await directoryOf(filesLeftByKill(directory))
    }
  }
  await checkStore(directory)
  // Only now, for their file descriptors.
  for (const store of left) await store.close()
})

test('recovery: a clean stop leaves a snapshot of everything and an empty journal', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory)
  for (const each of plantsTo(5n)) await store.create('alice', each)
  await store.close()
  const files = await filesOf(directory)
  assert.deepEqual([...files.keys()], [journalName(2), SNAPSHOT])
  assert.deepEqual(files.get(journalName(2)), headerLine(6))
})

test('recovery: stopped again without a write, it writes no new snapshot', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory)
  await store.create('alice', plant(1n))
  await store.close()
  const before = await filesOf(directory)
  const again = await openStore(directory, {
    compact: () => assert.fail('a compaction was asked for'),
  })
  await again.close()
  assert.deepEqual(await filesOf(directory), before)
})

test('recovery: a damaged directory is read once, or five times if it is served', async (t) => {
  const files = await severalJournals()
  const directory = await directoryOf(
    new Map(files).set(FIRST, (files.get(FIRST) ?? Buffer.alloc(0)).subarray(0, 40)),
  )
  const opened = t.mock.method(PlantDatabase, 'serving')
  const closed = t.mock.method(PlantDatabase.prototype, 'close')
  await assert.rejects(checkStore(directory), StoreCorrupt)
  assert.equal(opened.mock.callCount(), 1)
  const lock = await lockDirectory(directory)
  await assert.rejects(checkStore(directory), StoreCorrupt)
  await lock.release()
  assert.equal(opened.mock.callCount(), 1 + 5)
  // In the memory of one.
  assert.equal(closed.mock.callCount(), opened.mock.callCount())
})

test('recovery: journals that a kill left too long are compacted by the next start', async () => {
  const files = await killedAfter(plantsTo(3n), { compactBytes: 2 ** 20 })
  const directory = await directoryOf(files)
  const lines: LogLine[] = []
  const store = await openStore(directory, { compactBytes: 1 }, lines)
  await until('the journals are compacted', () =>
    lines.some(({ message }) => message === 'compacted'),
  )
  await store.close()
  const again = await openStore(directory)
  assert.deepEqual(await list(again), names(3))
  await again.close()
})

test('compaction: in a worker thread it keeps everything while creates go on', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  const store = await openStore(directory, { compact: compactInWorker, compactBytes: 1000 }, lines)
  let count = 0
  await until('the journals are compacted twice', async () => {
    await Promise.all(
      Array.from({ length: 20 }, () => store.create('alice', plant(BigInt(++count)))),
    )
    return lines.filter(({ message }) => message === 'compacted').length >= 2
  })
  await store.close()
  const again = await openStore(directory)
  assert.deepEqual(await list(again), names(count))
  await again.close()
  await checkStore(directory)
})

test('compaction: a stop abandons the one under way, and writes one snapshot', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const asked: boolean[] = []
  const written: boolean[] = []
  const lines: LogLine[] = []
  const options: Partial<SqljsStoreOptions> = {
    async compact(job, signal) {
      if (job.sequence === 0) return compact(nodeFiles, job)
      asked.push(job.isQuiet)
      if (!job.isQuiet && signal) {
        await once(signal, 'abort')
        // As a crash would leave it.
        await writeFile(`${directory}/plants.sqlite.tmp`, 'half')
        throw new Error('the thread was ended')
      }
      const bytes = await compact(nodeFiles, job)
      written.push(job.isQuiet)
      return bytes
    },
    compactBytes: 1,
  }
  const store = await openStore(directory, options, lines)
  await store.create('alice', plant(1n))
  await until('a compaction is under way', () => asked.length === 1)
  await store.create('alice', plant(2n))
  await store.close()
  assert.deepEqual([asked, written], [[false, true], [true]])
  assert.deepEqual([...(await filesOf(directory)).keys()], [journalName(3), SNAPSHOT])
  assert.deepEqual(lines, [])
  const again = await openStore(directory)
  assert.deepEqual(await list(again), names(2))
  await again.close()
})

test('compaction: what an abandoned thread still writes is in no later snapshot', async () => {
  const directory = `${await temporaryDirectory()}/data`
  let late: File | undefined
  const store = await openStore(directory, {
    async compact(job, signal) {
      if (signal) {
        late = await nodeFiles.open(`${directory}/plants.sqlite.tmp`, 'temporary')
        await once(signal, 'abort')
        throw new Error('the thread was ended')
      }
      const compacted = await compact(nodeFiles, job)
      await late?.write(Buffer.alloc(8192, 'x'), 0)
      return compacted
    },
    compactBytes: 1,
  })
  await store.create('alice', plant(1n))
  await until('a compaction is under way', () => late !== undefined)
  await store.close()
  await late?.close()
  const again = await openStore(directory)
  assert.deepEqual(await list(again), names(1))
  await again.close()
})

test('compaction: a stop at any time of its thread loses nothing, leaves no file', async (t) => {
  const files = await killedAfter(plantsTo(3n), { compactBytes: 2 ** 20 })
  const large = 'x'.repeat(2 ** 20)
  let abandoned = 0
  const everyMs = THOROUGH ? 4 : 20
  // Other moments in each run.
  const firstMs = randomInt(everyMs)
  for (let ms = firstMs; ms < 200; ms += everyMs) {
    const directory = await directoryOf(files)
    const lines: LogLine[] = []
    const options = { compact: compactFiles, compactBytes: 2 ** 20 }
    const store = await openStore(directory, options, lines)
    for (let id = 4n; id <= 8n; id++) await store.create('alice', plant(id, large))
    await sleep(ms)
    await store.close()
    const left = [...(await filesOf(directory)).keys()]
    assert.deepEqual([left.length, left.at(-1)], [2, SNAPSHOT], `${ms} ms`)
    assert.ok(
      lines.every(({ message }) => message === 'compacted'),
      JSON.stringify(lines),
    )
    if (lines.length === 0) abandoned++
    const again = await openStore(directory)
    assert.equal((await list(again)).length, 8)
    await again.close()
  }
  t.diagnostic(`every ${everyMs} ms from ${firstMs} on; ${abandoned} were abandoned`)
  assert.ok(abandoned > 0)
})

test('compaction: it runs in a thread, unless a small store is being closed', async () => {
  let threads = 0
  const count = (): number => ++threads
  process.on('worker', count)
  for (const [isQuiet, bytes, expected] of [
    [true, 64 * 1024, 0],
    [true, 64 * 1024 + 1, 1],
    [false, 1, 1],
  ] as const) {
    const directory = await directoryOf(await killedAfter(plantsTo(2n)))
    threads = 0
    const lengths = { snapshotBytes: bytes - 1, journalBytes: 1 }
    await compactFiles({ directory, upToJournal: 1, sequence: 2, plants: 2, isQuiet, ...lengths })
    assert.equal(threads, expected)
    assert.ok((await filesOf(directory)).has('plants.sqlite'))
  }
  process.off('worker', count)
})

/** A closed journal of two writes, and the next one. */
async function closedAfterTwo(): Promise<Map<string, Buffer>> {
  return (await killedAfter(plantsTo(2n))).set(journalName(2), headerLine(3))
}

const UNKNOWN = { isQuiet: true, snapshotBytes: 0, journalBytes: 0 }

test('compaction: its thread has memory for the longest line', async () => {
  // 16 MiB, the longest body that may be configured, with two bytes a character in memory.
  const row: Row = ['alice', '1', `\u{1f331}${'x'.repeat(16 * 2 ** 20)}`]
  const journal = Buffer.concat([headerLine(1), batchLine(1, [row])])
  const directory = await directoryOf(
    new Map([
      [FIRST, journal],
      [journalName(2), headerLine(2)],
    ]),
  )
  const job = { directory, upToJournal: 1, sequence: 1, plants: 1, ...UNKNOWN }
  const { plants } = await compactInWorker({ ...job, journalBytes: journal.length })
  assert.equal(plants, 1)
})

test(
  'recovery: start, compaction, check, export and import close every file',
  { skip: process.platform !== 'linux' && 'open files are listed on Linux alone' },
  async () => {
    const opened = (): number => readdirSync('/proc/self/fd').length
    const life = async (): Promise<void> => {
      const directory = await directoryOf(await severalJournals())
      const store = await openStore(directory)
      await store.close()
      await checkStore(directory)
      const file = `${await temporaryDirectory()}/export.sqlite`
      await exportStore(directory, file)
      await importStore(() => openStore(`${directory}-2`), file)
      const damaged = await directoryOf(await severalJournals())
      const bytes = readFileSync(`${damaged}/${FIRST}`)
      await writeFile(`${damaged}/${FIRST}`, bytes.fill('x', 40, 50))
      const job = { directory: damaged, upToJournal: 1, sequence: 9, plants: 9, ...UNKNOWN }
      await assert.rejects(compact(nodeFiles, job))
    }
    // The first time, modules are loaded.
    await life()
    const before = opened()
    await life()
    assert.equal(opened(), before)
  },
)

test('compaction: it begins when the journals are a third as long as the snapshot', async () => {
  const lines: LogLine[] = []
  const compactions = (): number => lines.filter(({ message }) => message === 'compacted').length
  const directory = `${await temporaryDirectory()}/data`
  const first = await openStore(directory)
  await first.create('alice', plant(1n, 'x'.repeat(300_000)))
  await first.close()
  const store = await openStore(directory, { compactBytes: 1, compactShare: 1 / 3 }, lines)
  await store.create('alice', plant(2n, 'x'.repeat(95_000)))
  await sleep(200)
  assert.equal(compactions(), 0)
  await store.create('alice', plant(3n, 'x'.repeat(20_000)))
  await until('the journals are compacted', () => compactions() === 1)
  await store.close()
})

const PRELOADS = {
  'keeps its thread alive': 'setInterval(() => {}, 1000)',
  'posts messages': "import { parentPort as to } from 'node:worker_threads'; to?.postMessage(7)",
}
for (const [what, preload] of Object.entries(PRELOADS)) {
  test(`compaction: it ends with its result though a preloaded module ${what}`, async () => {
    const directory = await directoryOf(await closedAfterTwo())
    const job = { directory, upToJournal: 1, sequence: 2, plants: 2, ...UNKNOWN }
    const file = import.meta.resolve('../../../dist/store/sqljs/compaction-thread.js')
    const script = `${await temporaryDirectory()}/compact.mjs`
    await writeFile(
      script,
      `import { compactInWorker } from ${JSON.stringify(file)}
      process.stdout.write(String((await compactInWorker(${JSON.stringify(job)})).bytes))
      process.exit()`,
    )
    const preloaded = `data:text/javascript,${encodeURIComponent(preload)}`
    const child = spawn(process.execPath, ['--import', preloaded, script])
    const [printed] = (await once(child.stdout, 'data')) as [Buffer]
    assert.equal(Number(printed.toString()), statSync(`${directory}/plants.sqlite`).size)
    assert.match(await checkStore(directory), /2 plants in a snapshot/)
  })
}

test('recovery: a journal of another name is not ours, and removes none', async () => {
  const files = await killedAfter(plantsTo(3n))
  const stray = 'journal-000000001.log'
  const directory = await directoryOf(new Map([...files, [stray, files.get(FIRST) ?? Buffer.of()]]))
  const store = await openStore(directory)
  assert.equal((await list(store)).length, 3)
  await store.close()
  assert.deepEqual(readdirSync(directory).toSorted(), [stray, journalName(2), SNAPSHOT])
  const again = await openStore(directory)
  assert.equal((await list(again)).length, 3)
  await again.close()
})

test('compaction: it succeeds if its journals stay, and the next one removes them', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  let fails = true
  const files: Files = {
    ...nodeFiles,
    async remove(path) {
      if (fails && journalNumber(basename(path)) !== undefined) throw new Error('EIO')
      await nodeFiles.remove(path)
    },
  }
  const store = await openStore(directory, { files, compactBytes: 1 }, lines)
  const count = (what: string): number => lines.filter(({ message }) => message === what).length
  const journals = (): string[] => readdirSync(directory).filter((name) => name.endsWith('.log'))
  await store.create('alice', plant(1n, 'x'.repeat(50_000)))
  const what = 'compacted journals could not be removed; that is tried again later'
  await until('the journal stays', () => count(what) === 1)
  assert.equal(count('compacted'), 1)
  assert.deepEqual(journals(), [FIRST, journalName(2)])
  fails = false
  await store.create('alice', plant(2n, 'x'.repeat(50_000)))
  await until('all that is compacted is removed', () => journals().join() === journalName(3))
  assert.deepEqual([count('compacted'), count(what)], [2, 1])
  await store.close()
  assert.match(await checkStore(directory), /2 plants in a snapshot/)
  assert.ok(lines.every(({ level, message }) => level === 'info' || message === what))
})

test('compaction: a worker thread that fails says why', async () => {
  const directory = `${await temporaryDirectory()}/nowhere`
  await assert.rejects(
    compactInWorker({ directory, upToJournal: 1, sequence: 1, plants: 1, ...UNKNOWN }),
    /ENOENT/,
  )
  const wrong = await directoryOf(await killedAfter(plantsTo(2n)))
  await assert.rejects(
    compactInWorker({
      directory: wrong,
      upToJournal: 1,
      sequence: 7,
      plants: 7,
      ...UNKNOWN,
    }),
    /should have 7 plants up to write 7, and have 2 up to write 2/,
  )
  assert.deepEqual([...(await filesOf(wrong)).keys()], [FIRST, SNAPSHOT])
})

test(
  'compaction: its thread has a lower priority than those that answer',
  { skip: process.platform !== 'linux' && "priorities are a thread's own on Linux alone" },
  async () => {
    const rows = Array.from({ length: 3000 }, (_, id): Row => ['alice', String(id), 'Fern'])
    const journal = Buffer.concat([headerLine(1), batchLine(1, rows)])
    const directory = await directoryOf(new Map([[FIRST, journal]]))
    const before = getPriority()
    const niceness = (thread: string): number => {
      try {
        return Number(
          readFileSync(`/proc/self/task/${thread}/stat`, 'utf8').split(') ')[1]?.split(' ')[16],
        )
      } catch {
        // It ended in between.
        return before
      }
    }
    let done = false
    let lowest = 0
    const compacted = compactInWorker({
      directory,
      upToJournal: 1,
      sequence: 1,
      plants: 3000,
      ...UNKNOWN,
    }).finally(() => (done = true))
    while (!done) {
      lowest = Math.max(lowest, ...readdirSync('/proc/self/task').map(niceness))
      await sleep(1)
    }
    await compacted
    assert.equal(lowest, Math.max(10, before))
    assert.equal(getPriority(), before)
  },
)

test(
  "compaction: its thread lowers its priority before it loads the store's files",
  { skip: process.platform !== 'linux' && "priorities are a thread's own on Linux alone" },
  async () => {
    // The real file, beside files that say at which priority they are loaded.
    const directory = await temporaryDirectory()
    const name = 'compaction-thread.js'
    await copyFile(
      new URL(import.meta.resolve(`../../../dist/store/sqljs/${name}`)),
      join(directory, name),
    )
    const os = "import { getPriority } from 'node:os'\n"
    await writeFile(`${directory}/package.json`, '{"type":"module"}')
    await writeFile(`${directory}/files.js`, `${os}export const nodeFiles = getPriority()`)
    const compact = 'const here = getPriority()\nexport const compact = async (files) => Math.min'
    await writeFile(`${directory}/compaction.js`, `${os}${compact}(files, here)`)
    // It is a copy of that file.
    const { compactInWorker: run } = (await import(
      pathToFileURL(join(directory, name)).href
    )) as typeof import('../../../dist/store/sqljs/compaction-thread.js')
    const job = { directory, upToJournal: 1, sequence: 1, plants: 1, ...UNKNOWN }
    assert.equal(await run(job), Math.max(10, getPriority()))
  },
)

test('recovery: a data directory that is a file is named, with its setting', async () => {
  const file = `${await temporaryDirectory()}/file`
  await writeFile(file, 'kept')
  await assert.rejects(openStore(file, { lock: lockDirectory }), (error: Error) => {
    assert.equal(
      error.message,
      `${file} cannot be the data directory (PLANTS_DATA, or the option data)`,
    )
    assert.match(String(error.cause), /ENOTDIR/)
    return true
  })
  assert.equal(readFileSync(file, 'utf8'), 'kept')
})

test('recovery: a start that fails gives back the memory of its database', async (t) => {
  const directory = await directoryOf(await killedAfter([plant(1n), plant(2n)]))
  const opened = t.mock.method(PlantDatabase, 'serving')
  const closed = t.mock.method(PlantDatabase.prototype, 'close')
  const files: Files = {
    ...nodeFiles,
    read: (path, maxBytes) =>
      maxBytes === undefined ? Promise.reject(new Error('EIO')) : nodeFiles.read(path, maxBytes),
  }
  await assert.rejects(openStore(directory, { files }), /EIO/)
  assert.deepEqual(
    [opened, closed].map(({ mock }) => mock.callCount()),
    [1, 1],
  )
  const path = join(directory, journalName(1))
  const bytes = readFileSync(path)
  // A broken line with a good one after it.
  bytes.write('x', bytes.indexOf('\n') + 1)
  await writeFile(path, bytes)
  await assert.rejects(openStore(directory), StoreCorrupt)
  assert.deepEqual(
    [opened, closed].map(({ mock }) => mock.callCount()),
    [2, 2],
  )
})

test('recovery: a start that failed writes nothing after it', async () => {
  const directory = await directoryOf(await killedAfter([plant(1n)]))
  let isDiskBroken = true
  const files: Files = {
    ...nodeFiles,
    open: (path, mode) =>
      isDiskBroken ? Promise.reject(new Error('EIO')) : nodeFiles.open(path, mode),
  }
  const retryMs = { write: 20, compaction: 20 }
  await assert.rejects(openStore(directory, { files, retryMs }), /EIO/)
  isDiskBroken = false
  const store = await openStore(directory)
  assert.equal(await store.create('alice', plant(2n)), 'stored')
  await sleep(10 * retryMs.write)
  assert.equal(await store.create('alice', plant(3n)), 'stored')
  // As a kill would leave it.
  const copy = await openStore(await directoryOf(await filesOf(directory)))
  assert.deepEqual(await list(copy), plantsTo(3n).map(shown))
  await Promise.all([store.close(), copy.close()])
})

test('recovery: a directory above that was removed fails the start', async () => {
  // A mkdir in /proc fails as one in a removed directory does: ENOENT, though the parent exists.
  await assert.rejects(
    openStore('/proc/plants/data'),
    ({ cause }: Error) => errorCodeOf(cause) === 'ENOENT',
  )
})

test('recovery: without memory for a line, only its batch is refused', async (t) => {
  const directory = await temporaryDirectory()
  const store = await openStore(directory)
  const { mock } = t.mock.method(Buffer, 'concat', () => {
    throw new RangeError('Array buffer allocation failed')
  })
  await assert.rejects(store.create('alice', plant(1n)), StoreUnavailable)
  mock.restore()
  assert.equal(await store.create('alice', plant(2n)), 'stored')
  await store.close()
  const reopened = await openStore(directory)
  assert.deepEqual(await list(reopened), [shown(plant(2n))])
  await reopened.close()
})
