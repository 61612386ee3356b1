import assert from 'node:assert/strict'
import { cp, readdir, readFile, writeFile } from 'node:fs/promises'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { NewPlant } from '../../dist/plants/plant.js'
import { StoreFull, StoreUnavailable } from '../../dist/plants/store.js'
import { compact } from '../../dist/store/sqljs/compaction.js'
import { PlantDatabase } from '../../dist/store/sqljs/database.js'
import { type Files, type Mode, nodeFiles } from '../../dist/store/sqljs/files.js'
import { SqljsStore, type SqljsStoreOptions } from '../../dist/store/sqljs/store.js'
import { checkStore } from '../../dist/cli/check.js'
import { plant, readAll } from '../contract/store.contract.ts'
import { sampled } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import {
  filesLeftByKill,
  filesOf,
  IN_MEMORY,
  list,
  memoryDisk,
  openStore,
} from '../store/sqljs/fixtures.ts'
import { type DiskCall, type Fault, simulatedFiles, systemError } from './simulated-disk.ts'
import { firstSnapshotOnly } from '../store/sqljs/fixtures.ts'
import { logOf } from '../support/log.ts'

const OWNER = 'alice'
/** Enough for each line of these tests, and little to write, to copy and to read. */
const PADDING_BYTES = 32 * 1024

/** Real files. Each call of them can be made to fail. */
function failingFiles(onCall: (call: DiskCall) => Fault | undefined): Files {
  const begin = (name: DiskCall['name'], path: string, mode?: Mode): Fault | undefined => {
    const fault = onCall({ name, path, mode })
    if (fault?.how === 'refused') throw systemError(fault.code, `${name} ${path}`)
    return fault
  }
  const after = <T>(fault: Fault | undefined, path: string, result: T): T => {
    if (fault?.how === 'unsynced') throw systemError(fault.code, path)
    return result
  }
  return {
    makeDirectory: async (path) => (begin('makeDirectory', path), nodeFiles.makeDirectory(path)),
    list: async (path) => (begin('list', path), nodeFiles.list(path)),
    read: async (path, maxBytes) => (begin('read', path), nodeFiles.read(path, maxBytes)),
    rename: async (from, to) => (begin('rename', to), nodeFiles.rename(from, to)),
    remove: async (path) => (begin('remove', path), nodeFiles.remove(path)),
    syncDirectory: async (path) => (begin('syncDirectory', path), nodeFiles.syncDirectory(path)),
    async open(path, mode) {
      begin('open', path, mode)
      const file = await nodeFiles.open(path, mode)
      return {
        async write(bytes, at) {
          const fault = begin('write', path, mode)
          return after(
            fault,
            path,
            await file.write(
              fault?.how === 'short' ? bytes.subarray(0, bytes.length / 2) : bytes,
              at,
            ),
          )
        },
        writeNow(bytes, at) {
          const fault = begin('writeNow', path, mode)
          const taken = fault?.how === 'short' ? bytes.subarray(0, bytes.length / 2) : bytes
          return after(fault, path, file.writeNow(taken, at))
        },
        readNow: (bytes, at) => (begin('readNow', path, mode), file.readNow(bytes, at)),
        syncNow: () => after(begin('syncNow', path, mode), path, file.syncNow()),
        lengthBytes: async () => (begin('lengthBytes', path, mode), file.lengthBytes()),
        sync: async () => after(begin('sync', path, mode), path, await file.sync()),
        truncate: async (lengthBytes) => (
          begin('truncate', path, mode),
          file.truncate(lengthBytes)
        ),
        close: async () => {
          // The kernel closes the file even if it reports an error.
          await file.close()
          begin('close', path, mode)
        },
      }
    },
  }
}

/** A directory, what was sent to the store in it, and what was acknowledged. */
class World {
  readonly directory: string
  readonly lines: string[] = []
  readonly fatal: unknown[] = []
  readonly #sent = new Map<bigint, string>()
  readonly #acknowledged = new Set<bigint>()
  #fail: (call: DiskCall) => Fault | undefined = () => undefined
  store: SqljsStore | undefined

  constructor(directory: string) {
    this.directory = directory
  }

  static async create(): Promise<World> {
    return new World(`${await temporaryDirectory()}/data`)
  }

  /** Which calls fail from now on. */
  fail(when: (call: DiskCall) => Fault | undefined): void {
    this.#fail = when
  }

  async open(options: Partial<SqljsStoreOptions> = {}): Promise<SqljsStore> {
    const files = failingFiles((call) => this.#fail(call))
    this.store = await SqljsStore.open({
      directory: this.directory,
      maxDataBytes: 2 ** 26,
      log: logOf((_level, message) => this.lines.push(message)),
      onFatal: (error) => this.fatal.push(error),
      files,
      compact: (job) => compact(files, job),
      retryMs: { write: 2, compaction: 2 },
      paddingBytes: PADDING_BYTES,
      compactShare: 0,
      ...options,
    })
    return this.store
  }

  get opened(): SqljsStore {
    assert.ok(this.store)
    return this.store
  }

  /** True when the plant was acknowledged, false when it was not certain. */
  async create(created: NewPlant): Promise<boolean> {
    this.#sent.set(created.id, created.name)
    try {
      assert.equal(await this.opened.create(OWNER, created), 'stored')
      this.#acknowledged.add(created.id)
      return true
    } catch (error) {
      assert.ok(error instanceof StoreUnavailable, String(error))
      return false
    }
  }

  /** The first journal's bytes. */
  journal(): Promise<Buffer> {
    return readFile(`${this.directory}/journal-00000001.log`)
  }

  async names(): Promise<string[]> {
    return (await readAll(this.opened.list(OWNER, { after: undefined, limit: undefined }))).map(
      ({ name }) => name,
    )
  }

  get acknowledged(): string[] {
    return [...this.#sent]
      .filter(([id]) => this.#acknowledged.has(id))
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([, name]) => name)
  }

  /**
   * Every fault test ends with this: the directory is sound, holds all that was acknowledged, and
   * nothing that was never sent.
   */
  async verify(contents?: ReadonlyMap<string, Buffer>): Promise<void> {
    const names = await namesIn(contents ?? (await filesOf(this.directory)))
    for (const name of this.acknowledged)
      assert.ok(names.includes(name), `${name} was acknowledged, and is lost`)
    for (const name of names)
      assert.ok([...this.#sent.values()].includes(name), `${name} was never sent`)
  }

  async closeAndVerify(): Promise<void> {
    this.fail(() => undefined)
    await this.opened.close()
    await checkStore(this.directory)
    await this.verify()
    assert.deepEqual(this.fatal, [])
  }

  /** Verifies what a kill would leave now. */
  async verifyAfterKill(): Promise<void> {
    await this.verify(filesLeftByKill(this.directory))
  }
}

/** By the digest of the files: many runs leave the same ones. */
const verified = new Map<string, readonly string[]>()

/** What a start finds in such files, which are then closed and checked. */
async function namesIn(contents: ReadonlyMap<string, Buffer>): Promise<readonly string[]> {
  const disk = memoryDisk(contents)
  const digest = disk.digest()
  const known = verified.get(digest)
  if (known) return known
  const files = simulatedFiles(disk)
  const store = await openStore(IN_MEMORY, { files, compact: (job) => compact(files, job) })
  const names = (await list(store, OWNER)).map(({ name }) => name)
  await store.close()
  await checkStore(IN_MEMORY, files)
  verified.set(digest, names)
  return names
}

const FAULTS: Readonly<Record<string, readonly Fault[]>> = {
  write: [
    { code: 'EIO', how: 'refused' },
    { code: 'EIO', how: 'unsynced' },
    { code: 'ENOSPC', how: 'refused' },
    { code: 'ENOSPC', how: 'unsynced' },
    { code: '', how: 'short' },
  ],
}
const OTHER_FAULTS: readonly Fault[] = [
  { code: 'EIO', how: 'refused' },
  { code: 'ENOSPC', how: 'refused' },
]

/** Lets each call of an operation fail, one at a time, in each way. */
async function eachCall(
  t: TestContext,
  begin: () => Promise<World>,
  operation: (world: World, failed: () => boolean) => Promise<void>,
): Promise<void> {
  const calls: DiskCall[] = []
  const faultless = await begin()
  faultless.fail((call) => void calls.push(call))
  await operation(faultless, () => false)
  let tried = 0
  for (const [i, { name, path }] of sampled(calls.entries(), 3)) {
    for (const fault of FAULTS[name] ?? OTHER_FAULTS) {
      const world = await begin()
      let call = 0
      world.fail(() => (call++ === i ? fault : undefined))
      tried += 1
      try {
        await operation(world, () => call > i)
      } catch (error) {
        throw new Error(
          `call ${i}, ${name} ${path}, ${fault.code} ${fault.how}: ${String(error)}`,
          { cause: error },
        )
      }
    }
  }
  t.diagnostic(`${tried} failures of ${calls.length} calls`)
}

test('failing calls of a write: it is refused, reading goes on, writes come back', async (t) => {
  await eachCall(
    t,
    async () => {
      const world = await World.create()
      await world.open()
      assert.ok(await world.create(plant(1n)))
      return world
    },
    async (world, failed) => {
      const wasStored = await world.create(plant(2n))
      assert.equal(wasStored, !failed())
      // At once: the store soon recovers.
      assert.equal(world.opened.unavailableReason() === undefined, !failed())
      assert.deepEqual(await world.names(), world.acknowledged)
      await until('the create works again', () => world.create(plant(2n)))
      assert.equal(world.opened.unavailableReason(), undefined)
      assert.equal(await world.opened.create(OWNER, plant(2n, 'other')), 'conflict')
      assert.deepEqual(await world.names(), world.acknowledged)
      await world.verifyAfterKill()
      await world.closeAndVerify()
    },
  )
})

test('failing calls after a short write: not cut back, the journal is rewritten', async (t) => {
  for (const broken of ['truncate', 'sync'] as const) {
    const world = await World.create()
    await world.open()
    assert.ok(await world.create(plant(1n)))
    let isShort = true
    world.fail(({ name, mode }) => {
      if (name === 'write' && mode === 'durable' && isShort) {
        isShort = false
        return { code: '', how: 'short' }
      }
      return name === broken && mode === 'durable'
        ? { code: 'EIO', how: name === 'sync' ? 'unsynced' : 'refused' }
        : undefined
    })
    assert.equal(await world.create(plant(2n)), false)
    await world.verifyAfterKill()
    await until('the create works again', () => world.create(plant(2n)))
    await world.verifyAfterKill()
    await world.closeAndVerify()
  }
  t.diagnostic('2 failures')
})

test('failing calls of a padded write: without space the line is written alone', async (t) => {
  await eachCall(
    t,
    async () => {
      const world = await World.create()
      await world.open()
      return world
    },
    async (world) => {
      await until('the create works', () => world.create(plant(1n)))
      await until('the next one works', () => world.create(plant(2n)))
      assert.deepEqual(await world.names(), world.acknowledged)
      assert.equal(world.opened.unavailableReason(), undefined)
      await world.verifyAfterKill()
      await world.closeAndVerify()
    },
  )
  for (const fault of [
    { code: 'ENOSPC', how: 'refused' },
    { code: 'EDQUOT', how: 'unsynced' },
    { code: '', how: 'short' },
  ] as const) {
    const world = await World.create()
    await world.open()
    let writes = 0
    world.fail(({ name, mode }) =>
      name === 'write' && mode === 'durable' && writes++ === 0 ? fault : undefined,
    )
    for (let id = 1n; id < 4n; id++)
      assert.ok(await world.create(plant(id)), `${fault.code} ${fault.how}`)
    assert.equal(writes, 4, 'the line was written again by itself')
    assert.deepEqual(world.lines, [])
    // The space that is left stays free: there is no more padding.
    assert.ok(!(await world.journal()).includes(0))
    await world.verifyAfterKill()
    await world.closeAndVerify()
  }
})

test('failing calls of a write over padding: no rest of it follows a shorter line', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  assert.ok((await world.journal()).includes(0), 'there is padding')
  let writes = 0
  world.fail(({ name, mode }) =>
    name === 'write' && (mode === 'temporary' || writes++ === 0)
      ? { code: 'ENOSPC', how: mode === 'temporary' ? 'refused' : 'short' }
      : undefined,
  )
  assert.equal(await world.create({ id: 2n, name: 'x'.repeat(1000) }), false)
  assert.ok(await world.create(plant(3n)))
  const text = (await world.journal()).toString('latin1').replace(/\0+$/, '')
  assert.deepEqual(
    text
      .split('\n')
      .slice(1)
      .map((line) => line.slice(9)),
    ['1 [["alice","1","plant 1"]]', '2 [["alice","3","plant 3"]]', ''],
  )
  await world.verifyAfterKill()
  await world.closeAndVerify()
})

test('failing calls of a rotation and a compaction: both are done in the end', async (t) => {
  await eachCall(
    t,
    async () => {
      const world = await World.create()
      await world.open({ compactBytes: 1 })
      return world
    },
    async (world) => {
      await until('a create works', () => world.create(plant(1n)))
      await until('the journals are compacted', async () => {
        await world.create(plant(2n))
        return world.lines.includes('compacted')
      })
      await until('creates work', () => world.create(plant(3n)))
      assert.deepEqual(await world.names(), world.acknowledged)
      assert.equal(world.opened.unavailableReason(), undefined)
      await world.verifyAfterKill()
      await world.closeAndVerify()
      assert.deepEqual(
        (await readdir(world.directory)).filter(
          (name) => !/^(lock-\d+|plants\.sqlite|journal-\d+\.log)$/.test(name),
        ),
        [],
      )
    },
  )
})

test('failing calls of a start: it opens with everything, now or the next time', async (t) => {
  const origin = await World.create()
  await origin.open({ compactBytes: 1, compact: firstSnapshotOnly })
  for (let id = 1n; id < 5n; id++) assert.ok(await origin.create(plant(id)))
  await origin.opened.close()
  const written = (await readdir(origin.directory)).filter((name) => name.startsWith('journal'))
  assert.ok(written.length > 1, 'there should be several journals')
  await eachCall(
    t,
    async () => {
      const world = new World(`${await temporaryDirectory()}/data`)
      await cp(origin.directory, world.directory, { recursive: true })
      return world
    },
    async (world) => {
      try {
        await world.open()
      } catch {
        await world.open()
      }
      assert.deepEqual(await world.names(), origin.acknowledged)
      await until('a create works', () => world.create(plant(9n)))
      assert.deepEqual(await world.names(), [...origin.acknowledged, 'plant 9'])
      assert.equal(world.opened.unavailableReason(), undefined)
      for (let id = 1n; id < 5n; id++) assert.ok(await world.create(plant(id)))
      await world.verifyAfterKill()
      await world.closeAndVerify()
    },
  )
})

test('failing calls of a stop: it ends, and the next start finds everything', async (t) => {
  await eachCall(
    t,
    async () => {
      const world = await World.create()
      await world.open()
      for (let id = 1n; id < 4n; id++) assert.ok(await world.create(plant(id)))
      return world
    },
    async (world) => {
      await world.opened.close()
      await world.verify()
    },
  )
})

test('full disk: a start reads and refuses creates until space comes back', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  await world.opened.close()
  world.fail(({ name, mode }) =>
    name === 'write' && mode === 'temporary' ? { code: 'ENOSPC', how: 'refused' } : undefined,
  )
  await world.open()
  assert.deepEqual(await world.names(), ['plant 1'])
  assert.equal(await world.create(plant(2n)), false)
  assert.match(world.opened.unavailableReason() ?? '', /ENOSPC/)
  world.fail(() => undefined)
  await until('the create works', () => world.create(plant(2n)))
  await world.closeAndVerify()
})

test('full disk: a write that is cut short says so from the start', async () => {
  const world = await World.create()
  await world.open()
  world.fail(({ name }) => (name === 'write' ? { code: '', how: 'short' } : undefined))
  assert.equal(await world.create(plant(1n)), false)
  assert.match(
    world.opened.unavailableReason() ?? '',
    /^the journal could not be written: no space left on the disk, .* it took \d+ of \d+ bytes$/,
  )
  world.fail(() => undefined)
  await until('the create works', () => world.create(plant(1n)))
  await world.closeAndVerify()
})

test('full disk: after a refused write, smaller ones go on without a rewrite', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  let isFull = true
  world.fail(({ name, mode }) =>
    name === 'write' && (mode === 'temporary' || isFull)
      ? { code: 'ENOSPC', how: 'refused' }
      : undefined,
  )
  assert.equal(await world.create(plant(2n)), false)
  assert.match(
    world.opened.unavailableReason() ?? '',
    /^the journal could not be written: ENOSPC: write [^:]+$/,
  )
  await until(
    'rewriting fails',
    () => world.lines.filter((line) => line.startsWith('plants cannot be written')).length > 2,
  )
  isFull = false
  assert.ok(await world.create(plant(3n)))
  await world.verifyAfterKill()
  await world.closeAndVerify()
})

test('full disk: it is logged as an error at most once a second', async () => {
  const world = await World.create()
  let errors = 0
  let others = 0
  const told = (level: string, message: string): unknown =>
    message.startsWith('plants cannot be written') && (level === 'error' ? errors++ : others++)
  await world.open({ log: logOf(told) })
  world.fail(({ name }) => (name === 'write' ? { code: 'ENOSPC', how: 'refused' } : undefined))
  const begunAtMs = performance.now()
  for (let id = 1n; id <= 50n; id++) assert.equal(await world.create(plant(id)), false)
  const seconds = (performance.now() - begunAtMs) / 1000
  assert.ok(errors >= 1 && errors <= 1 + seconds, `${errors} errors in ${seconds} s`)
  assert.ok(others >= 1 && errors + others >= 50, `${others} lines at level debug`)
  world.fail(() => undefined)
  await until('the create works', () => world.create(plant(51n)))
  await world.verifyAfterKill()
  await world.closeAndVerify()
})

test('full disk: a plant whose write was refused leaves its room free', async () => {
  const world = await World.create()
  await world.open({ maxDataBytes: 2 ** 20 })
  assert.ok(await world.create(plant(1n)))
  const huge = { id: 2n, name: 'x'.repeat(900_000) }
  world.fail(({ name }) => (name === 'write' ? { code: 'ENOSPC', how: 'refused' } : undefined))
  assert.equal(await world.create(huge), false)
  world.fail(() => undefined)
  await until('the create works', () => world.create(huge))
  await assert.rejects(world.opened.create(OWNER, { ...huge, id: 3n }), StoreFull)
  await world.closeAndVerify()
})

test('in doubt: a create without room in the database is told that it is full', async () => {
  const world = await World.create()
  const store = await world.open({ maxDataBytes: 65_536 })
  assert.ok(await world.create(plant(1n)))
  world.fail(({ path }) => (/journal/.test(path) ? { code: 'ENOSPC', how: 'refused' } : undefined))
  assert.equal(await world.create(plant(2n)), false)
  const huge = { id: 3n, name: 'x'.repeat(65_536) }
  await assert.rejects(store.create(OWNER, huge), StoreFull)
  await assert.rejects(store.create(OWNER, { ...huge, id: 1n }), StoreUnavailable)
  assert.equal(await world.create(plant(4n)), false, 'a refusal takes no room')
  world.fail(() => undefined)
  await until('the create works', () => world.create(plant(4n)))
  await assert.rejects(store.create(OWNER, huge), StoreFull)
  await world.closeAndVerify()
})

test('in doubt: no rotation before the journal is rewritten', async () => {
  const world = await World.create()
  await world.open({ compactBytes: 1 })
  let rotationFails = true
  const inDoubt: Fault = { code: 'EIO', how: 'unsynced' }
  let writes = 0
  world.fail(({ name, mode, path }) => {
    if (name === 'open' && path.endsWith('2.log.tmp') && rotationFails)
      return { code: 'ENOSPC', how: 'refused' }
    if (name === 'open' && path.endsWith('1.log.tmp')) return { code: 'ENOSPC', how: 'refused' }
    return name === 'write' && mode === 'durable' && writes++ === 1 ? inDoubt : undefined
  })
  const first = world.create(plant(1n))
  const second = first.then(() => world.create(plant(2n)))
  assert.ok(await first)
  // The line of this one is whole in the file, but was not acknowledged.
  assert.equal(await second, false)
  rotationFails = false
  await sleep(50)
  await world.verifyAfterKill()
  world.fail(() => undefined)
  await until('creates work', () => world.create(plant(3n)))
  await world.verifyAfterKill()
  await world.closeAndVerify()
})

test('in doubt: no compaction before the next journal is in place', async () => {
  const world = await World.create()
  await world.open({ compactBytes: 1 })
  let phase: 'no snapshot' | 'no journal' = 'no snapshot'
  world.fail(({ name, path }) => {
    if (phase === 'no snapshot')
      return name === 'rename' && path.endsWith('.sqlite')
        ? { code: 'EIO', how: 'refused' }
        : undefined
    return name === 'rename' && path.endsWith('.log') ? { code: 'EIO', how: 'refused' } : undefined
  })
  assert.ok(await world.create(plant(1n)))
  await until('a compaction has failed', () =>
    world.lines.some((line) => line.includes('could not be compacted')),
  )
  phase = 'no journal'
  // A compaction under way may still have succeeded. Then the next one waits until the journal is
  // a third as long as the snapshot.
  let id = 2n
  await until('the next journal is missing', async () => {
    await world.create(plant(id++, 'x'.repeat(1000)))
    return world.opened.unavailableReason() !== undefined
  })
  await sleep(50)
  await world.verifyAfterKill()
  world.fail(() => undefined)
  await until('creates work', () => world.create(plant(id)))
  await world.closeAndVerify()
})

test('full disk: a failed compaction leaves no temporary file', async () => {
  const world = await World.create()
  await world.open({ compactBytes: 1 })
  world.fail(({ name, mode, path }) =>
    name === 'sync' && mode === 'temporary' && path.includes('.sqlite')
      ? { code: 'ENOSPC', how: 'unsynced' }
      : undefined,
  )
  assert.ok(await world.create(plant(1n)))
  await until('a compaction has failed', () =>
    world.lines.some((line) => line.includes('could not be compacted')),
  )
  // Not at once: the next attempt may be writing one.
  await until(
    'no temporary file is left',
    async () => !(await readdir(world.directory)).some((name) => name.endsWith('.sqlite.tmp')),
  )
  await world.closeAndVerify()
})

test('in doubt: a damaged journal is not rewritten, and lists keep what it had', async () => {
  const damages: readonly ((sound: Buffer) => Buffer)[] = [
    (sound) => Buffer.concat([Buffer.from('P'), sound.subarray(1)]),
    (sound) => Buffer.concat([sound.subarray(0, 50), Buffer.from([1]), sound.subarray(51)]),
    (sound) => sound.subarray(0, sound.indexOf('\n') + 1),
  ]
  for (const damage of damages) {
    const world = await World.create()
    await world.open()
    for (const id of [1n, 2n, 3n]) assert.ok(await world.create(plant(id)))
    const sound = await world.journal()
    await writeFile(`${world.directory}/journal-00000001.log`, damage(sound))
    world.fail(({ mode }) => (mode === 'durable' ? { code: 'EIO', how: 'refused' } : undefined))
    assert.equal(await world.create(plant(4n)), false)
    const what =
      /acknowledged lines are missing or damaged; only GET .plants still has their plants/
    await until('rewriting fails', () => what.test(world.opened.unavailableReason() ?? ''))
    assert.deepEqual(await world.names(), ['plant 1', 'plant 2', 'plant 3'])
    await writeFile(`${world.directory}/journal-00000001.log`, sound)
    world.fail(() => undefined)
    await until('creates work', () => world.create(plant(5n)))
    await world.closeAndVerify()
  }
})

test('in doubt: a plant whose write failed is not shown, and its id is free', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  world.fail(({ mode }) => (mode === 'durable' ? { code: 'EIO', how: 'unsynced' } : undefined))
  const creates = [world.create(plant(2n)), world.create(plant(3n)), world.create(plant(2n))]
  assert.deepEqual(await Promise.all(creates), [false, false, false])
  assert.deepEqual(await world.names(), ['plant 1'])
  world.fail(() => undefined)
  await until('creates work', () => world.opened.unavailableReason() === undefined)
  assert.ok(await world.create({ id: 2n, name: 'another plant 2' }))
  assert.deepEqual(await world.names(), ['plant 1', 'another plant 2'])
  await world.closeAndVerify()
})

test('fatal: a batch that is durable and not inserted ends the store', async (t) => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  const { insert } = PlantDatabase.prototype
  // One row is in the database, the other is not.
  const broken = t.mock.method(
    PlantDatabase.prototype,
    'insert',
    function (this: PlantDatabase, rows: Parameters<typeof insert>[0]) {
      insert.call(this, rows.slice(0, 1))
      throw new Error('out of memory')
    },
  )
  const creates = [2n, 3n].map((id) => world.create(plant(id)))
  await sleep(0)
  creates.push(world.create(plant(4n)))
  assert.deepEqual(await Promise.all(creates), [false, false, false])
  assert.deepEqual(world.fatal.map(String), ['Error: out of memory'])
  assert.equal(await world.create(plant(5n)), false)
  assert.match(world.opened.unavailableReason() ?? '', /memory and journal may differ/)
  await world.opened.close()
  broken.mock.restore()
  await world.verify()
  // What was not answered is durable: the next start has it, and a repeated create is safe.
  const again = new World(world.directory)
  await again.open()
  assert.deepEqual(await again.names(), ['plant 1', 'plant 2', 'plant 3'])
  assert.ok(await again.create(plant(2n)))
  await again.opened.close()
})

test('fatal: a database that fails ends the store, and no create hangs', async (t) => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  // The first create of the batch is decided, the second fails, the third waits.
  const { existing } = PlantDatabase.prototype
  const broken = t.mock.method(
    PlantDatabase.prototype,
    'existing',
    function (this: PlantDatabase, row: Parameters<typeof existing>[0]) {
      if (row[1] !== '2') throw new Error('out of memory')
      return existing.call(this, row)
    },
  )
  const creates = [2n, 3n, 4n].map((id) => world.create(plant(id)))
  assert.deepEqual(await Promise.all(creates), [false, false, false])
  assert.equal(world.fatal.length, 1)
  await world.opened.close()
  broken.mock.restore()
  await world.verify()
})

test('closed: a store that is closed refuses lists', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  const closing = [world.opened.close(), world.opened.close()]
  await Promise.all(closing)
  await assert.rejects(world.names(), StoreUnavailable)
  await world.verify()
})
