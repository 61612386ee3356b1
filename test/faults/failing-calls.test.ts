import assert from 'node:assert/strict'
import { cp, readdir, readFile } from 'node:fs/promises'
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
import { leftByKill } from '../store/sqljs/fixtures.ts'
import { type DiskCall, type Fault, systemError } from './simulated-disk.ts'

const OWNER = 'alice'

/** Real files, each call of which can be made to fail. */
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
    read: async (path) => (begin('read', path), nodeFiles.read(path)),
    readStart: async (path, lengthBytes) => (
      begin('readStart', path),
      nodeFiles.readStart(path, lengthBytes)
    ),
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
        sync: async () => after(begin('sync', path, mode), path, await file.sync()),
        truncate: async (lengthBytes) => (
          begin('truncate', path, mode),
          file.truncate(lengthBytes)
        ),
        close: async () => {
          // Closed all the same, as the kernel does it.
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
      log: (_level, message) => this.lines.push(message),
      onFatal: (error) => this.fatal.push(error),
      files,
      compact: (job) => compact(files, job),
      retryMs: { write: 2, compaction: 2 },
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
   * Ends with what every fault test ends with: the directory is sound, and holds what was
   * acknowledged and nothing else that was never sent.
   */
  async verify(directory = this.directory): Promise<void> {
    const reopened = new World(directory)
    const store = await reopened.open({
      files: nodeFiles,
      compact: (job) => compact(nodeFiles, job),
    })
    const names = await reopened.names()
    for (const name of this.acknowledged)
      assert.ok(names.includes(name), `${name} was acknowledged, and is lost`)
    for (const name of names)
      assert.ok([...this.#sent.values()].includes(name), `${name} was never sent`)
    await store.close()
    await checkStore(directory)
  }

  async closeAndVerify(): Promise<void> {
    this.fail(() => undefined)
    await this.opened.close()
    await checkStore(this.directory)
    await this.verify()
    assert.deepEqual(this.fatal, [])
  }

  /** As if the process were killed now: what is left must open. */
  async verifyAfterKill(): Promise<void> {
    await this.verify(await leftByKill(this.directory))
  }
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

/** Has each call that an operation makes fail in turn, in each way. */
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

test('failing calls of a write: no acknowledgement, reading goes on, unavailableReason is told, and the same create works later', async (t) => {
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
      // Now: by itself it soon heals.
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

test('failing calls behind a short write: where it cannot be cut off, the journal is renewed before the next write', async (t) => {
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

test('failing calls of the write that takes a reserve: want of room costs no create, and after anything else creates come back', async (t) => {
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
    // What room there is stays free: no more is reserved.
    assert.ok(!(await world.journal()).includes(0))
    await world.verifyAfterKill()
    await world.closeAndVerify()
  }
})

test('failing calls behind a write into the reserve: no rest of a long line stands behind a shorter one', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  assert.ok((await world.journal()).includes(0), 'there is a reserve')
  let writes = 0
  world.fail(({ name, mode }) =>
    name === 'write' && (mode === 'aside' || writes++ === 0)
      ? { code: 'ENOSPC', how: mode === 'aside' ? 'refused' : 'short' }
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

test('failing calls of a turn and a compaction: creates go on or come back, and the journals are compacted in the end', async (t) => {
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
          (name) => !/^(lock-\d+|plants\.sqlite)$/.test(name),
        ),
        [],
      )
    },
  )
})

test('failing calls of a start: it opens, at once or the next time, with everything, and creates work without another start', async (t) => {
  const origin = await World.create()
  await origin.open({ compactBytes: 1, compact: () => Promise.reject(new Error('not now')) })
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

test('failing calls of a stop: it ends all the same, and the next start finds everything', async (t) => {
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

test('a start on a full disk reads, refuses creates and says why; when space comes back creates work', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  await world.opened.close()
  world.fail(({ name, mode }) =>
    name === 'write' && mode === 'aside' ? { code: 'ENOSPC', how: 'refused' } : undefined,
  )
  await world.open()
  assert.deepEqual(await world.names(), ['plant 1'])
  assert.equal(await world.create(plant(2n)), false)
  assert.match(world.opened.unavailableReason() ?? '', /ENOSPC/)
  world.fail(() => undefined)
  await until('the create works', () => world.create(plant(2n)))
  await world.closeAndVerify()
})

test('a write that found no space does not cost the journal: while it cannot be renewed, smaller writes go on', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  let isFull = true
  world.fail(({ name, mode }) =>
    name === 'write' && (mode === 'aside' || isFull)
      ? { code: 'ENOSPC', how: 'refused' }
      : undefined,
  )
  assert.equal(await world.create(plant(2n)), false)
  await until(
    'renewing fails',
    () => world.lines.filter((line) => line.startsWith('plants cannot be written')).length > 2,
  )
  isFull = false
  assert.ok(await world.create(plant(3n)))
  await world.verifyAfterKill()
  await world.closeAndVerify()
})

test('while the disk is in doubt, a create that the database has no room for is told so, and what is kept already is not', async () => {
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

test('no journal is begun behind one that is in doubt: a turn that is tried again waits until that is renewed', async () => {
  const world = await World.create()
  await world.open({ compactBytes: 1 })
  let turnFails = true
  const inDoubt: Fault = { code: 'EIO', how: 'unsynced' }
  let writes = 0
  world.fail(({ name, mode, path }) => {
    if (name === 'open' && path.endsWith('2.log.tmp') && turnFails)
      return { code: 'ENOSPC', how: 'refused' }
    if (name === 'open' && path.endsWith('1.log.tmp')) return { code: 'ENOSPC', how: 'refused' }
    return name === 'write' && mode === 'durable' && writes++ === 1 ? inDoubt : undefined
  })
  const first = world.create(plant(1n))
  const second = first.then(() => world.create(plant(2n)))
  assert.ok(await first)
  // The line of this one is whole in the file, and nobody was told so.
  assert.equal(await second, false)
  turnFails = false
  await sleep(50)
  await world.verifyAfterKill()
  world.fail(() => undefined)
  await until('creates work', () => world.create(plant(3n)))
  await world.verifyAfterKill()
  await world.closeAndVerify()
})

test('nothing is compacted while the journal that is to follow the snapshot is not in place', async () => {
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
  // A compaction that was under way may still have come to its end: then the next one waits until
  // the journal is as long as the snapshot.
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

test('what could not be written leaves nothing beside: a full disk is not kept full by it', async () => {
  const world = await World.create()
  await world.open({ compactBytes: 1 })
  world.fail(({ name, mode, path }) =>
    name === 'sync' && mode === 'aside' && path.includes('.sqlite')
      ? { code: 'ENOSPC', how: 'unsynced' }
      : undefined,
  )
  assert.ok(await world.create(plant(1n)))
  await until('a compaction has failed', () =>
    world.lines.some((line) => line.includes('could not be compacted')),
  )
  assert.deepEqual(
    (await readdir(world.directory)).filter((name) => name.endsWith('.sqlite.tmp')),
    [],
  )
  await world.closeAndVerify()
})

test('a group that is durable and cannot be applied ends the store: nobody waits for ever, and the next start has it', async (t) => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  const broken = t.mock.method(PlantDatabase.prototype, 'insert', () => {
    throw new Error('out of memory')
  })
  const creates = [world.create(plant(2n)), world.create(plant(2n))]
  await sleep(0)
  creates.push(world.create(plant(3n)))
  assert.deepEqual(await Promise.all(creates), [false, false, false])
  assert.deepEqual(world.fatal.map(String), ['Error: out of memory'])
  assert.equal(await world.create(plant(4n)), false)
  assert.notEqual(world.opened.unavailableReason(), undefined)
  await world.opened.close()
  broken.mock.restore()
  await world.verify()
  await world.open()
  assert.ok((await world.names()).includes('plant 2'))
  await world.opened.close()
})

test('a database that cannot be asked ends the store: nobody waits for ever', async (t) => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  const broken = t.mock.method(PlantDatabase.prototype, 'existing', () => {
    throw new Error('out of memory')
  })
  assert.deepEqual(await Promise.all([world.create(plant(2n)), world.create(plant(3n))]), [
    false,
    false,
  ])
  assert.equal(world.fatal.length, 1)
  await world.opened.close()
  broken.mock.restore()
  await world.verify()
})

test('a closed store lists nothing more, and says so as a storage does', async () => {
  const world = await World.create()
  await world.open()
  assert.ok(await world.create(plant(1n)))
  const closing = [world.opened.close(), world.opened.close()]
  await Promise.all(closing)
  await assert.rejects(world.names(), StoreUnavailable)
  await world.verify()
})
