import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { appendFileSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { copyFile, mkdir, writeFile } from 'node:fs/promises'
import { getPriority } from 'node:os'
import { basename } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { compact, type CompactionJob } from '../../../dist/store/sqljs/compaction.js'
import { compactInWorker } from '../../../dist/store/sqljs/compaction-thread.js'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { PlantDatabase } from '../../../dist/store/sqljs/memory/database.js'
import { type File, type Files, nodeFiles } from '../../../dist/store/sqljs/disk/files.js'
import { batchLine, headLines, journalName } from '../../../dist/store/sqljs/disk/journal-format.js'
import { journalNumber, type Position } from '../../../dist/store/sqljs/disk/journal-format.js'
import { readHead } from '../../../dist/store/sqljs/disk/journal-format.js'
import { readJournal, type Row } from '../../../dist/store/sqljs/disk/journal-format.js'
import { StoreCorrupt } from '../../../dist/store/sqljs/disk/journal-format.js'
import { lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import { SNAPSHOT } from '../../../dist/store/sqljs/disk/snapshot.js'
import type { SqljsStore, SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { checkDirectory, exportToFile } from '../../../dist/store/sqljs/inspect.js'
import { importStore } from '../../../dist/cli/import.js'
import { plant, shown } from '../../contract/store.contract.ts'
import { type Fault, REFUSED, simulatedFiles } from '../../faults/simulated-disk.ts'
import { systemError } from '../../faults/simulated-disk.ts'
import { seeded } from '../../support/random.ts'
import { LONG, THOROUGH } from '../../support/scale.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { oldHead } from '../../support/store-files.ts'
import { until } from '../../support/time.ts'
import { contentsOf, directoryOf, filesLeftByKill, filesOf, filesReading } from './fixtures.ts'
import { fixture, holds, notNow } from './fixtures.ts'
import { IN_MEMORY, killedAfter, list, type LogLine, memoryDisk, openStore } from './fixtures.ts'
import { plantsTo, untilCompacted } from './fixtures.ts'

const NEVER = { compact: notNow, retryMs: 1 } as const
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
  const files = simulatedFiles(disk, { onCall: () => fault })
  const lines: LogLine[] = []
  const store = await openStore(IN_MEMORY, { files }, lines)
  assert.deepEqual(await list(store), names(count))
  const torn = lines.filter(({ message }) => message.includes('torn'))
  for (const { fields } of torn) {
    const [file, byte, bytes] = ['file', 'byte', 'bytes'].map((name) => fields?.[name])
    const journal = contents.get(basename(String(file))) ?? assert.fail()
    assert.deepEqual(
      await contentsOf(files, String(fields?.['kept'])),
      Buffer.from(journal.subarray(Number(byte), Number(byte) + Number(bytes))),
    )
  }
  assert.equal(await store.create('alice', plant(1000n, 'new')), 'stored')
  const left = `${count} ${disk.digest()}`
  // A close that cannot write is faster.
  if (reopened.has(left)) fault = REFUSED
  await store.close()
  if (fault) return torn
  reopened.add(left)
  await checkDirectory(IN_MEMORY, files)
  const again = await openStore(IN_MEMORY, { files })
  assert.deepEqual(await list(again), [...names(count), { name: 'new' }])
  await again.close()
  return torn
}

/** Refuses such a directory, names one of its files and where in it, and changes nothing. */
async function refuses(
  contents: ReadonlyMap<string, Uint8Array>,
  file: string,
  what = /./,
): Promise<void> {
  const files = simulatedFiles(memoryDisk(contents))
  const refusal = (error: unknown): boolean => {
    assert.ok(error instanceof StoreCorrupt, String(error))
    assert.ok(error.message.startsWith(`${IN_MEMORY}/${file} is damaged at byte `), error.message)
    assert.match(error.message, what)
    return true
  }
  await assert.rejects(openStore(IN_MEMORY, { files }), refusal)
  const byName = [...contents].toSorted(([a], [b]) => (a < b ? -1 : 1))
  assert.deepEqual(await filesOf(IN_MEMORY, files), new Map(byName))
  await assert.rejects(checkDirectory(IN_MEMORY, files), refusal)
}

function without(files: ReadonlyMap<string, Buffer>, ...gone: string[]): Map<string, Buffer> {
  return new Map([...files].filter(([name]) => !gone.includes(name)))
}

/** Where its head and its lines end. */
function lineEnds(journal: Buffer): number[] {
  const ends = [...journal.entries()].filter(([, byte]) => byte === 10).map(([at]) => at + 1)
  return ends.slice(ends.indexOf(readHead('', journal).headBytes))
}

/**
 * Where a journal is cut or flipped: everywhere, or around each end of a line and at some others.
 * That the reader of a journal tells all of them apart is tested at every byte always.
 */
function cutsOf(random: () => number, journal: Buffer): number[] {
  const ends = new Set(lineEnds(journal).flatMap((end) => [end - 1, end, end + 1]))
  const all = [...Array(journal.length + 1).keys()]
  return all.filter((at) => THOROUGH || ends.has(at) || random() < 0.01)
}

/** Where a journal ends in the history of its store. */
function endOf(journal: Buffer): Position {
  const lines = readJournal('', journal, true)
  for (;;) {
    const step = lines.next()
    if (step.done) return step.value.end
  }
}

/** As a killed 2.0.0 left them, which never compacted. */
function asOld(files: ReadonlyMap<string, Buffer>): Map<string, Buffer> {
  const old = new Map<string, Buffer>()
  for (const [name, bytes] of files) {
    if (name === SNAPSHOT) continue
    const { begin, headBytes } = readHead('', bytes)
    old.set(name, Buffer.concat([oldHead(begin.sequence + 1), bytes.subarray(headBytes)]))
  }
  return old
}

const FIRST = 'journal-00000001.log'

/**
 * Three closed journals, whose compaction never came to pass, and the one in use with two writes.
 */
async function severalJournals(options: Partial<SqljsStoreOptions> = {}) {
  const files = await killedAfter(plantsTo(3n), { ...NEVER, ...options, compactBytes: 1 })
  assert.ok(files.size >= 4 && files.has(SNAPSHOT), [...files.keys()].join())
  return files
}

test('recovery: a journal cut at any byte has all writes before it, or is refused', async (t) => {
  const { random } = seeded(t)
  for (const isOld of [false, true]) {
    const now = await killedAfter(plantsTo(3n))
    // The old one with padding.
    const files = isOld ? asOld(now) : now
    const journal = files.get(FIRST) ?? Buffer.alloc(0)
    const ends = lineEnds(journal)
    assert.equal(ends.length, 4)
    for (const length of cutsOf(random, journal)) {
      const padding = Buffer.alloc(isOld ? 100 : 0)
      files.set(FIRST, Buffer.concat([journal.subarray(0, length), padding]))
      const whole = ends.filter((end) => end <= length)
      const goodBytes = whole.at(-1) ?? 0
      if (goodBytes === 0) {
        await refuses(files, FIRST, /its (first|second) line is not that of a journal/)
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

test('recovery: a closed journal, cut or flipped at any byte, is refused', async (t) => {
  const files = await severalJournals()
  const journal = files.get(FIRST) ?? Buffer.alloc(0)
  const places = cutsOf(seeded(t).random, journal).filter((at) => at < journal.length)
  for (const at of places) {
    const flipped = Buffer.from(journal)
    flipped[at] = (journal[at] ?? 0) ^ 0x01
    await refuses(new Map(files).set(FIRST, flipped), FIRST)
    const cut = new Map(files).set(FIRST, journal.subarray(0, at))
    // Cut between two lines it is sound by itself; it is the next one that does not follow.
    await refuses(cut, lineEnds(journal).includes(at) ? journalName(2) : FIRST)
  }
  t.diagnostic(`${places.length} flips and cuts`)
})

test('recovery: a new store without a snapshot, or a journal, lists meanwhile', async () => {
  for (const what of ['plants.sqlite', 'journal']) {
    let fails = true
    const open: Files['open'] = (path, mode) =>
      fails && mode === 'temporary' && path.includes(what)
        ? Promise.reject(new Error(`no ${what}`))
        : nodeFiles.open(path, mode)
    const directory = `${await temporaryDirectory()}/data`
    const store = await openStore(directory, { files: { ...nodeFiles, open }, retryMs: 1 })
    assert.deepEqual(await list(store), [])
    await assert.rejects(store.create('alice', plant(1n, 'Oak')), StoreUnavailable)
    assert.match(store.unavailableReason() ?? '', new RegExp(`no ${what}`))
    // What a kill leaves then is a new store again.
    const left = await directoryOf(filesLeftByKill(directory))
    fails = false
    await until('creates work', () => store.unavailableReason() === undefined)
    for (const each of [store, await openStore(left)]) {
      assert.equal(await each.create('alice', plant(1n, 'Oak')), 'stored')
      await each.close()
    }
    for (const each of [directory, left]) await holds(each, [{ name: 'Oak' }])
  }
})

test('recovery: an export over an older journal with a torn line takes creates', async () => {
  const older = await killedAfter(plantsTo(3n))
  const directory = await directoryOf(older)
  const store = await openStore(directory)
  for (const each of plantsTo(9n)) assert.equal(await store.create('alice', each), 'stored')
  await store.close()
  const file = `${directory}-export`
  await exportToFile(directory, file)
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

test('recovery: a reader starts over if files come and go, and for no other error', async (t) => {
  const opened = t.mock.method(PlantDatabase, 'serving')
  const closed = t.mock.method(PlantDatabase.prototype, 'close')
  const directory = await directoryOf(await severalJournals())
  /** How often a check reads the directory, and whether it finds it sound. */
  const readings = async (beforeJournal: () => Promise<void>): Promise<[number, boolean]> => {
    let count = 0
    // Each reading looks for a snapshot once.
    const reading = filesReading(beforeJournal)
    const open: Files['open'] = (path, mode) => {
      count += Number(path.endsWith(SNAPSHOT))
      return reading.open(path, mode)
    }
    const isSound = await checkDirectory(directory, { ...nodeFiles, open }).then(
      () => true,
      () => false,
    )
    return [count, isSound]
  }
  const damage = new StoreCorrupt(directory, 0, 'damaged')
  for (const isServed of [false, true]) {
    const lock = isServed ? await lockDirectory(directory) : undefined
    // A running service explains damage, and no failing disk. ENOENT: a link that leads nowhere.
    for (const code of ['EIO', 'EACCES', 'EMFILE', ...(isServed ? [] : ['ENOENT'])]) {
      const failing = await readings(() => Promise.reject(systemError(code, 'read')))
      assert.deepEqual(failing, [1, false], code)
    }
    assert.deepEqual(await readings(() => Promise.reject(damage)), [isServed ? 5 : 1, false])
    // A line that is not whole yet, or the one before it, of which the reader saw less.
    let damages = 1
    const once = async (): Promise<void> => {
      if (damages-- > 0) throw damage
    }
    assert.deepEqual(await readings(once), isServed ? [2, true] : [1, false])
    await lock?.release()
  }
  // In the memory of one.
  assert.equal(closed.mock.callCount(), opened.mock.callCount())
  // A service starts, removes journals and ends before anyone asks whether one runs.
  let hasRun = false
  const runService = async (): Promise<void> => {
    if (hasRun) return
    hasRun = true
    await (await openStore(directory, { lock: lockDirectory })).close()
  }
  // All files were open before.
  assert.deepEqual(await readings(runService), [1, true])
})

test('recovery: a missing journal is noticed, first or in between', async () => {
  const files = await severalJournals()
  const journals = [...files.keys()].filter((name) => name !== SNAPSHOT)
  for (const [at, gone] of journals.slice(0, -1).entries()) {
    // A compaction that is tried again may begin a journal that gets no write.
    if (lineEnds(files.get(gone) ?? Buffer.alloc(0)).length === 1) continue
    await refuses(without(files, gone), at === 0 ? SNAPSHOT : (journals[at + 1] ?? ''))
    const first = at === 0 ? (journals[1] ?? '') : FIRST
    await refuses(without(files, gone, SNAPSHOT), first, /is of store \d+, without its snapshot/)
    await refuses(asOld(without(files, gone)), journals[at + 1] ?? '', /a file is missing/)
  }
})

test('recovery: a file that cannot be read is named', async () => {
  for (const name of [SNAPSHOT, journalName(1)]) {
    const directory = await directoryOf(await killedAfter([plant(1n)]))
    rmSync(`${directory}/${name}`)
    mkdirSync(`${directory}/${name}`)
    const message = `EISDIR: illegal operation on a directory, read '${directory}/${name}'`
    await assert.rejects(openStore(directory), { message })
    await assert.rejects(checkDirectory(directory), { message })
  }
})

test('recovery: there is always a snapshot and a journal; a stop writes what is new', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const store = await openStore(directory)
  // Before its first plant.
  assert.deepEqual([...(await filesOf(directory)).keys()], [FIRST, SNAPSHOT])
  await store.close()
  const unchangedByStop = async (): Promise<Map<string, Buffer>> => {
    const before = await filesOf(directory)
    await (await openStore(directory, { compact: () => assert.fail('not asked for') })).close()
    assert.deepEqual(await filesOf(directory), before)
    return before
  }
  await unchangedByStop()
  const found = await checkDirectory(directory)
  assert.match(found, /0 plants in a snapshot and 1 journal, up to write 0/)
  const again = await openStore(directory)
  for (const each of plantsTo(5n)) await again.create('alice', each)
  await again.close()
  const files = await unchangedByStop()
  assert.deepEqual([...files.keys()], [journalName(2), SNAPSHOT])
  const last = files.get(journalName(2)) ?? assert.fail()
  assert.deepEqual(readHead('', last).headBytes, last.length)
  assert.equal(endOf(last).sequence, 5)
  await refuses(without(files, SNAPSHOT), journalName(2), /without its snapshot; .*put the files/)
  const why = /begins with write 6 is missing; put the missing file back, or move .* last export$/
  await refuses(without(files, journalName(2)), SNAPSHOT, why)
  files.get(SNAPSHOT)?.fill(1, 5000, 5001)
  await refuses(files, SNAPSHOT, /the last page does not fit/)
})

test('recovery: an export that was put back gets a new id and its journal at once', async () => {
  const origin = await directoryOf(await killedAfter(plantsTo(3n)))
  const directory = `${await temporaryDirectory()}/data`
  mkdirSync(directory)
  await exportToFile(origin, `${directory}-export`)
  await copyFile(`${directory}-export`, `${directory}/${SNAPSHOT}`)
  const lines: LogLine[] = []
  const store = await openStore(directory, {}, lines)
  await untilCompacted(lines)
  assert.deepEqual(
    lines.map(({ message }) => message),
    ['the store has a new id', 'compacted'],
  )
  assert.equal(store.unavailableReason(), undefined)
  const killed = filesLeftByKill(directory)
  await store.close()
  await opensWith(killed, 3)
  const [journal = ''] = killed.keys()
  await refuses(without(killed, journal), SNAPSHOT, /the journal that begins with write 4/)
})

test('compaction: one whose rename could not be synced is made again', async () => {
  const exported = `${await temporaryDirectory()}/export`
  await exportToFile(await directoryOf(await killedAfter(plantsTo(3n))), exported)
  // Of an export that was put back, and after an upgrade, it has a new id.
  const upgraded = [...(await filesOf(await fixture('version-3')))]
  for (const contents of [[], [[SNAPSHOT, readFileSync(exported)] as const], upgraded]) {
    const disk = memoryDisk(new Map(contents))
    let [isRenamed, failures] = [false, 0]
    const files = simulatedFiles(disk, {
      onCall({ name, path }) {
        if (name === 'syncDirectory' && isRenamed && failures++ < 1) return REFUSED
        isRenamed = name === 'rename' && path.endsWith(SNAPSHOT) && disk.find(path) !== undefined
        return undefined
      },
    })
    const compactBytes = contents.length > 0 ? 2 ** 24 : 1
    const options = { files, retryMs: 1 }
    const lines: LogLine[] = []
    const store = await openStore(IN_MEMORY, { ...options, compactBytes }, lines)
    await until('it has failed, or is made', () => failures > 0 || contents.length === 0)
    await until('creates are taken', () => store.unavailableReason() === undefined)
    assert.equal(await store.create('alice', plant(9n)), 'stored')
    await until('it is made again', () => failures > 1)
    assert.equal(lines.filter(({ level }) => level === 'error').length, 1)
    await store.close()
    const again = await openStore(IN_MEMORY, options)
    assert.ok((await list(again)).some(({ name }) => name === 'plant 9'))
    await again.close()
  }
})

test('compaction: while it fails again and again, no journal is added to those', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  let isFailing = true
  const options: Partial<SqljsStoreOptions> = {
    compactBytes: 1000,
    retryMs: 1,
    compact: (job) => (isFailing ? notNow(job) : compact(nodeFiles, job)),
  }
  const store = await openStore(directory, options, lines)
  const failures = (): number => lines.filter(({ level }) => level === 'error').length
  // Only the first one is so long that a compaction is due.
  assert.equal(await store.create('bob', plant(1n, 'x'.repeat(1000))), 'stored')
  for (let id = 1; id <= 5; id++) {
    const before = failures()
    await until('it has failed again', () => failures() > before)
    assert.equal(await store.create('alice', plant(BigInt(id))), 'stored')
  }
  const journals = () => readdirSync(directory).filter((name) => journalNumber(name) !== undefined)
  assert.equal(journals().length, 2)
  isFailing = false
  await until('they are compacted', () => journals().join() === journalName(2))
  await store.close()
  await holds(directory, names(5))
})

test('compaction: a snapshot with another number of plants removes no journal', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  let counted = 0
  const options: Partial<SqljsStoreOptions> = {
    compactBytes: 1,
    retryMs: 1,
    // It claims to be done, as a thread would whose memory is damaged.
    async compact(job) {
      counted += 1
      return { end: job.position, bytes: 1, sha: '', plants: job.position.sequence - 1 }
    },
  }
  const store = await openStore(directory, options, lines)
  for (const each of plantsTo(3n)) await store.create('alice', each)
  await until('it is tried again', () => counted > 1)
  await opensWith(filesLeftByKill(directory), 3)
  const why = /the new snapshot has \d plants up to write (\d), not \d up to \1$/
  assert.match(String(lines.at(-1)?.fields?.['error']), why)
  await store.close()
})

test('compaction: a stop whose memory lacks a plant keeps the journals', async (t) => {
  const directory = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  const store = await openStore(directory, {}, lines)
  const { mock } = t.mock.method(PlantDatabase.prototype, 'insert', () => {})
  for (const each of plantsTo(2n)) await store.create('alice', each)
  mock.restore()
  await store.close()
  const why = /the new snapshot has 0 plants up to write 2, not 2 up to 2$/
  assert.match(String(lines.at(-1)?.fields?.['error']), why)
  await opensWith(await filesOf(directory), 2)
})

test('recovery: a crash between snapshot rename and journal removal replays nothing', async (t) => {
  const { random } = seeded(t)
  const before = await severalJournals()
  const directory = await directoryOf(before)
  await (await openStore(directory)).close()
  const after = await filesOf(directory)
  assert.deepEqual(after.size, 2)
  const journals = [...before].filter(([name]) => name !== SNAPSHOT)
  // On a slow machine there are more, and all subsets of those would take too long.
  for (let bits = 0; bits < 2 ** Math.min(journals.length, 5); bits++)
    if (THOROUGH || random() < 0.5)
      await opensWith(new Map([...after, ...journals.filter((_, i) => (bits >> i) & 1)]), 3)
})

test('recovery: files that a crash left half written are removed', async () => {
  const files = await killedAfter(plantsTo(2n))
  for (const name of [SNAPSHOT, journalName(2)]) files.set(`${name}.tmp`, Buffer.from('half'))
  const directory = await directoryOf(files)
  const store = await openStore(directory)
  assert.deepEqual([...(await filesOf(directory)).keys()], [FIRST, SNAPSHOT])
  await store.close()
})

test('recovery: a folder with the name of a temporary file stays, and delays nothing', async () => {
  const files = await killedAfter(plantsTo(2n))
  // Also a new store, which needs an id.
  for (const [contents, count] of [
    [files, 3],
    [new Map<string, Buffer>(), 1],
  ] as const) {
    const directory = await directoryOf(contents)
    await mkdir(`${directory}/a.tmp`)
    const lines: LogLine[] = []
    const store = await openStore(directory, { compactBytes: 1 }, lines)
    assert.equal(await store.create('alice', plant(BigInt(count))), 'stored')
    await untilCompacted(lines)
    await store.close()
    const left = readdirSync(directory)
    assert.equal(left.filter((name) => journalNumber(name) !== undefined).length, 1)
    assert.ok(left.includes('a.tmp'))
    await holds(directory, count === 1 ? names(1) : names(3))
  }
})

test('recovery: journals that a kill left too long are compacted by the next start', async () => {
  const directory = await directoryOf(await killedAfter(plantsTo(3n), { compactBytes: 2 ** 20 }))
  const lines: LogLine[] = []
  const store = await openStore(directory, { compactBytes: 1 }, lines)
  await untilCompacted(lines)
  await store.close()
  await holds(directory, names(3))
})

test('compaction: in a worker thread it keeps everything while creates go on', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  const store = await openStore(directory, { compact: compactInWorker, compactBytes: 1000 }, lines)
  let [count, isDone] = [0, false]
  const compacted = untilCompacted(lines, THOROUGH ? 2 : 1).finally(() => (isDone = true))
  while (!isDone) {
    const some = Array.from({ length: 10 }, () => store.create('alice', plant(BigInt(++count))))
    await Promise.all(some)
    // The thread, too, needs the processor.
    await sleep(10)
  }
  await compacted
  await store.close()
  await holds(directory, names(count))
  await checkDirectory(directory)
})

test('compaction: what an abandoned thread still writes is in no later snapshot', async () => {
  const directory = `${await temporaryDirectory()}/data`
  let late: File | undefined
  const store = await openStore(directory, {
    async compact(job, signal) {
      late = await nodeFiles.open(`${directory}/${job.temporary}`, 'temporary')
      await once(signal ?? assert.fail(), 'abort')
      throw new Error('the thread was ended')
    },
    files: {
      ...nodeFiles,
      async rename(from, to) {
        await late?.write(Buffer.alloc(8192, 'x'), 0)
        await nodeFiles.rename(from, to)
      },
    },
    compactBytes: 1,
  })
  await store.create('alice', plant(1n))
  await until('a compaction is under way', () => late !== undefined)
  await store.close()
  await late?.close()
  assert.deepEqual([...(await filesOf(directory)).keys()], [journalName(2), SNAPSHOT])
  await holds(directory, names(1))
})

test('compaction: a stop at any time of its thread loses nothing, leaves no file', async (t) => {
  const files = await killedAfter(plantsTo(3n), { compactBytes: 2 ** 20 })
  // Three of them make a compaction due.
  const large = 'x'.repeat(2 ** 18)
  let abandoned = 0
  const everyMs = THOROUGH ? 4 : 40
  // Other moments in each run.
  const firstMs = randomInt(everyMs)
  for (let ms = firstMs; ms < (THOROUGH ? 200 : 80); ms += everyMs) {
    const directory = await directoryOf(files)
    const lines: LogLine[] = []
    const options = { compact: compactInWorker, compactBytes: 2 ** 19 }
    const store = await openStore(directory, options, lines)
    for (const id of [4n, 5n, 6n]) await store.create('alice', plant(id, large))
    await sleep(ms)
    await store.close()
    const left = [...(await filesOf(directory)).keys()]
    assert.deepEqual([left.length, left.at(-1)], [2, SNAPSHOT], `${ms} ms`)
    const others = lines.filter(({ message }) => message !== 'compacted')
    assert.deepEqual(others, [])
    if (lines.length === 0) abandoned++
    await holds(directory, [...names(3), { name: large }, { name: large }, { name: large }])
  }
  t.diagnostic(`every ${everyMs} ms from ${firstMs} on; ${abandoned} were abandoned`)
  assert.ok(abandoned > 0)
})

/** A closed journal of two writes, and the next one. */
async function closedAfterTwo(): Promise<Map<string, Buffer>> {
  const files = await killedAfter(plantsTo(2n))
  return files.set(journalName(2), headLines(endOf(files.get(FIRST) ?? assert.fail())))
}

/** The compaction of the first journal. */
function jobOf(directory: string, sequence: number): CompactionJob {
  const rest = { temporary: 'a.tmp', journalBytes: 0 }
  const position = { id: 7, sequence, checksum: 0 }
  return { directory, upToJournal: 1, position, ...rest }
}

test('compaction: its thread has memory for the longest line', { skip: LONG }, async () => {
  // 16 MiB, the longest body that may be configured, with two bytes a character in memory.
  const row: Row = ['alice', '1', `\u{1f331}${'x'.repeat(16 * 2 ** 20)}`]
  const journal = Buffer.concat([oldHead(1), batchLine(1, [row])])
  const files = new Map<string, Buffer>([[FIRST, journal]]).set(journalName(2), oldHead(2))
  const directory = await directoryOf(files)
  const job = { ...jobOf(directory, 1), journalBytes: journal.length }
  assert.equal((await compactInWorker(job)).plants, 1)
})

const onLinux = { skip: process.platform !== 'linux' && '/proc is on Linux alone' }

test('recovery: start, compaction, check, export, import close every file', onLinux, async () => {
  const opened = (): number => readdirSync('/proc/self/fd').length
  const files = await severalJournals()
  const damaged = new Map(files).set(FIRST, Buffer.from('x'))
  const life = async (): Promise<void> => {
    const directory = await directoryOf(files)
    await (await openStore(directory)).close()
    await checkDirectory(directory)
    const file = `${await temporaryDirectory()}/export.sqlite`
    await exportToFile(directory, file)
    await importStore(() => openStore(`${directory}-2`), file)
    await assert.rejects(compact(nodeFiles, jobOf(await directoryOf(damaged), 9)))
  }
  // The first time, modules are loaded.
  await life()
  const before = opened()
  await life()
  assert.equal(opened(), before)
})

test('compaction: it begins when the journals are a third as long as the snapshot', async () => {
  const directory = `${await temporaryDirectory()}/data`
  const first = await openStore(directory)
  await first.create('alice', plant(1n, 'x'.repeat(300_000)))
  await first.close()
  const lines: LogLine[] = []
  let writes: number | undefined
  const options: Partial<SqljsStoreOptions> = {
    compactBytes: 1,
    compactShare: 1 / 3,
    compact(job) {
      writes ??= job.position.sequence
      return compact(nodeFiles, job)
    },
  }
  const store = await openStore(directory, options, lines)
  await store.create('alice', plant(2n, 'x'.repeat(95_000)))
  await store.create('alice', plant(3n, 'x'.repeat(20_000)))
  await untilCompacted(lines)
  assert.equal(writes, 3, 'it did not begin before the third')
  await store.close()
})

test('compaction: it ends with its result whatever is preloaded', { skip: LONG }, async () => {
  const directory = await directoryOf(await closedAfterTwo())
  const job = jobOf(directory, 2)
  const file = import.meta.resolve('../../../dist/store/sqljs/compaction-thread.js')
  const script = `${await temporaryDirectory()}/compact.mjs`
  await writeFile(
    script,
    `import { compactInWorker } from ${JSON.stringify(file)}
    process.stdout.write(String((await compactInWorker(${JSON.stringify(job)})).bytes))
    process.exit()`,
  )
  // It posts messages, and keeps its thread alive.
  const preload = `import { parentPort as to } from 'node:worker_threads'
    to?.postMessage(7); setInterval(() => {}, 1000)`
  const preloaded = `data:text/javascript,${encodeURIComponent(preload)}`
  const child = spawn(process.execPath, ['--import', preloaded, script])
  const [printed] = await once(child.stdout, 'data')
  assert.equal(Number(printed), statSync(`${directory}/plants.sqlite`).size)
  assert.match(await checkDirectory(directory), /2 plants in a snapshot/)
})

test('recovery: a journal of another name is not ours, and removes none', async () => {
  const files = await killedAfter(plantsTo(3n))
  const stray = 'journal-000000001.log'
  const directory = await directoryOf(files.set(stray, files.get(FIRST) ?? Buffer.of()))
  for (let start = 0; start < 2; start++) await holds(directory, names(3))
  assert.deepEqual(readdirSync(directory).toSorted(), [stray, journalName(2), SNAPSHOT])
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
  const what = 'the journals could not be compacted or removed; that is tried again'
  await until('the journal stays', () => count(what) === 1)
  assert.equal(count('compacted'), 1)
  assert.deepEqual(journals(), [FIRST, journalName(2)])
  fails = false
  await store.create('alice', plant(2n, 'x'.repeat(50_000)))
  await until('all that is compacted is removed', () => journals().join() === journalName(3))
  assert.deepEqual([count('compacted'), count(what)], [2, 1])
  await store.close()
  assert.match(await checkDirectory(directory), /2 plants in a snapshot/)
  assert.ok(lines.every(({ level, message }) => level === 'info' || message === what))
})

test('compaction: its thread lowers its priority before it loads files', onLinux, async () => {
  // The real file, beside files that say at which priority they are loaded.
  const directory = await temporaryDirectory()
  const path = `${directory}/compaction-thread.js`
  const real = import.meta.resolve('../../../dist/store/sqljs/compaction-thread.js')
  await copyFile(new URL(real), path)
  const os = "import { getPriority } from 'node:os'\n"
  await writeFile(`${directory}/package.json`, '{"type":"module"}')
  await mkdir(`${directory}/disk`)
  await writeFile(`${directory}/disk/files.js`, `${os}export const nodeFiles = getPriority()`)
  const compact = 'const here = getPriority()\nexport const compact = async (files) => Math.min'
  await writeFile(`${directory}/compaction.js`, `${os}${compact}(files, here)`)
  // It is a copy of that file.
  const { compactInWorker: run } = (await import(
    pathToFileURL(path).href
  )) as typeof import('../../../dist/store/sqljs/compaction-thread.js')
  const before = getPriority()
  assert.equal(await run(jobOf(directory, 1)), Math.max(10, before))
  assert.equal(getPriority(), before, 'that of the threads that answer stays')
})

test('recovery: a data directory that is a file is named, with its setting', async () => {
  const file = `${await temporaryDirectory()}/file`
  await writeFile(file, 'kept')
  await assert.rejects(openStore(file, { lock: lockDirectory }), (error: Error) => {
    assert.equal(
      error.message,
      `${file} cannot be the data directory (PLANTS_DATA, or the option data)`,
    )
    assert.match(String(error.cause), /EEXIST/)
    return true
  })
  assert.equal(readFileSync(file, 'utf8'), 'kept')
})

test('recovery: a start that fails gives back the memory of its database', async (t) => {
  const directory = await directoryOf(await killedAfter(plantsTo(2n)))
  const closed = t.mock.method(PlantDatabase.prototype, 'close')
  const files = filesReading(() => Promise.reject(new Error('EIO')))
  await assert.rejects(openStore(directory, { files }), /EIO/)
  assert.equal(closed.mock.callCount(), 1)
  t.mock.method(PlantDatabase.prototype, 'limitOwners', () => assert.fail('no memory'))
  await assert.rejects(openStore(directory, { maxOwnerBytes: 1 }), /no memory/)
  assert.equal(closed.mock.callCount(), 2)
})

test('recovery: a start that failed writes nothing after it', async () => {
  const directory = await directoryOf(await killedAfter([plant(1n)]))
  let isDiskBroken = true
  const files: Files = {
    ...nodeFiles,
    open: (path, mode) =>
      isDiskBroken ? Promise.reject(new Error('EIO')) : nodeFiles.open(path, mode),
  }
  const retryMs = 10
  await assert.rejects(openStore(directory, { files, retryMs }), /EIO/)
  isDiskBroken = false
  const store = await openStore(directory)
  assert.equal(await store.create('alice', plant(2n)), 'stored')
  // Some retries.
  await sleep(4 * retryMs)
  assert.equal(await store.create('alice', plant(3n)), 'stored')
  // As a kill would leave it.
  await holds(await directoryOf(await filesOf(directory)), plantsTo(3n).map(shown))
  await store.close()
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
  await holds(directory, [shown(plant(2n))])
})
