import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { NewPlant } from '../../dist/plants/plant.js'
import { StoreFull, StoreUnavailable } from '../../dist/plants/store.js'
import { PlantDatabase } from '../../dist/store/sqljs/memory/database.js'
import { readHead } from '../../dist/store/sqljs/disk/journal-format.js'
import { SqljsStore, type SqljsStoreOptions } from '../../dist/store/sqljs/sqljs-store.js'
import { checkDirectory } from '../../dist/store/sqljs/inspect.js'
import { plant } from '../contract/store.contract.ts'
import { seeded } from '../support/random.ts'
import { someOf } from '../support/scale.ts'
import { stopClock, until } from '../support/time.ts'
import { filesWith, IN_MEMORY, list, type LogLine } from '../store/sqljs/fixtures.ts'
import { notNow, openStore } from '../store/sqljs/fixtures.ts'
import { type DiskCall, type Fault, SimulatedDisk, simulatedFiles } from './simulated-disk.ts'
import { faultsOf, NO_SPACE, REFUSED, SHORT, systemError } from './simulated-disk.ts'
import { UNSYNCED, UNSYNCED_FULL } from './simulated-disk.ts'

const OWNER = 'alice'
const JOURNAL = `${IN_MEMORY}/journal-00000001.log`
/** Enough for each line of these tests, and little to copy. */
const PADDING_BYTES = 32 * 1024

type Failing = (call: DiskCall) => Fault | undefined
const NO_FAULT: Failing = () => undefined
/** A disk, what was sent to the store on it, and what was acknowledged. */
class World {
  readonly disk: SimulatedDisk
  readonly lines: LogLine[] = []
  readonly fatal: unknown[] = []
  readonly #sent = new Map<bigint, string>()
  readonly #acknowledged = new Set<bigint>()
  readonly #files: ReturnType<typeof simulatedFiles>
  #store: SqljsStore | undefined
  /** Which calls fail from now on. */
  fails = NO_FAULT

  constructor(disk = SimulatedDisk.empty()) {
    this.disk = disk
    this.#files = simulatedFiles(disk, { onCall: (call) => this.fails(call) })
  }

  /** A store with as many plants. */
  static async with(count: number, options: Partial<SqljsStoreOptions> = {}): Promise<World> {
    const world = new World()
    await world.open(options)
    for (let id = 1; id <= count; id++) assert.ok(await world.create(plant(BigInt(id))))
    return world
  }

  async open(options: Partial<SqljsStoreOptions> = {}): Promise<void> {
    const given: Partial<SqljsStoreOptions> = {
      files: this.#files,
      onFatal: (error) => this.fatal.push(error),
      retryMs: 2,
      paddingBytes: PADDING_BYTES,
    }
    this.#store = await openStore(IN_MEMORY, { ...given, ...options }, this.lines)
  }

  get opened(): SqljsStore {
    return this.#store ?? assert.fail()
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

  /** Nothing fails any more, and creates work without a restart. */
  async recovers(created: NewPlant): Promise<void> {
    this.fails = NO_FAULT
    await until('the create works', () => this.create(created))
  }

  /** The first journal, without its padding. */
  journal(): Buffer {
    return this.disk.read(this.disk.must(JOURNAL))
  }

  logged(what: string): number {
    return this.lines.filter(({ message }) => message.includes(what)).length
  }

  async names(): Promise<string[]> {
    return (await list(this.opened, OWNER)).map(({ name }) => name)
  }

  get acknowledged(): string[] {
    return [...this.#sent]
      .filter(([id]) => this.#acknowledged.has(id))
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([, name]) => name)
  }

  /**
   * Every fault test ends with this: after a kill, and after a power loss that loses what is not
   * synced, the directory is sound, holds all that was acknowledged, and nothing never sent.
   */
  async verify(): Promise<void> {
    for (const disk of [this.disk.copy(), this.disk.afterPowerLoss([])]) {
      const names = await namesOn(disk)
      for (const name of this.acknowledged)
        assert.ok(names.includes(name), `${name} was acknowledged, and is lost`)
      for (const name of names)
        assert.ok([...this.#sent.values()].includes(name), `${name} was never sent`)
    }
  }

  async closeAndVerify(): Promise<void> {
    await this.verify()
    this.fails = NO_FAULT
    await this.opened.close()
    await checkDirectory(IN_MEMORY, this.#files)
    await this.verify()
    assert.deepEqual(this.fatal, [])
  }
}

/** By the digest of the disk: many runs leave the same one. */
const verified = new Map<string, readonly string[]>()

/** What a start finds on a disk, which is then closed and checked. */
async function namesOn(disk: SimulatedDisk): Promise<readonly string[]> {
  const digest = disk.digest()
  const known = verified.get(digest)
  if (known) return known
  const files = simulatedFiles(disk)
  const store = await openStore(IN_MEMORY, { files })
  const names = (await list(store, OWNER)).map(({ name }) => name)
  await store.close()
  await checkDirectory(IN_MEMORY, files)
  verified.set(digest, names)
  return names
}

/** Lets each call of an operation fail, one at a time, in each way. */
async function eachCall(
  t: TestContext,
  begin: () => Promise<World>,
  operation: (world: World, failed: () => boolean) => Promise<void>,
): Promise<void> {
  const calls: DiskCall[] = []
  const faultless = await begin()
  faultless.fails = (call) => void calls.push(call)
  await operation(faultless, () => false)
  const faults = calls.flatMap((each, i) =>
    faultsOf(each.name).map((fault) => [i, each, fault] as const),
  )
  // About three of many, and half of a few.
  const tried = someOf(seeded(t).random, faults, Math.max(2, Math.ceil(faults.length / 3) | 1))
  for (const [i, { name, path }, fault] of tried) {
    const world = await begin()
    let call = 0
    world.fails = () => (call++ === i ? fault : undefined)
    await operation(world, () => call > i).catch((error: unknown) => {
      const what = `call ${i}, ${name} ${path}, ${fault.code} ${fault.how}: ${String(error)}`
      throw new Error(what, { cause: error })
    })
  }
  t.diagnostic(`${tried.length} failures of ${calls.length} calls`)
}

for (const [what, count] of [
  ['a write', 1],
  // Without space for padding the line is written alone.
  ['a padded write', 0],
] as const)
  test(`failing calls of ${what}: it is refused, reading goes on, writes come back`, async (t) => {
    const begin = () => World.with(count)
    await eachCall(t, begin, async (world, failed) => {
      const wasStored = await world.create(plant(2n))
      if (count > 0) assert.equal(wasStored, !failed())
      // At once: the store soon recovers.
      assert.equal(world.opened.unavailableReason() === undefined, wasStored)
      assert.deepEqual(await world.names(), world.acknowledged)
      await until('the create works again', () => world.create(plant(2n)))
      assert.equal(world.opened.unavailableReason(), undefined)
      assert.equal(await world.opened.create(OWNER, plant(2n, 'other')), 'conflict')
      assert.deepEqual(await world.names(), world.acknowledged)
      await world.closeAndVerify()
    })
  })

for (const broken of ['truncate', 'sync'] as const)
  test(`failing calls: a short write, and ${broken} fails: the journal is rewritten`, async () => {
    const world = await World.with(1)
    let [writes, failed] = [0, 0]
    world.fails = ({ name, mode }) => {
      if (mode !== 'durable') return undefined
      if (name === 'write') return writes++ === 0 ? SHORT : undefined
      if (name !== broken) return undefined
      failed += 1
      return name === 'sync' ? UNSYNCED : REFUSED
    }
    assert.equal(await world.create(plant(2n)), false)
    // What is cut off is synced before the next line.
    assert.equal(failed, 1)
    await world.verify()
    await until('the create works again', () => world.create(plant(2n)))
    await world.closeAndVerify()
  })

for (const fault of [NO_SPACE, { code: 'EDQUOT', how: 'unsynced' }, SHORT] as const)
  test(`failing calls: without space for padding (${fault.how}) a line is alone`, async () => {
    const world = await World.with(0)
    let writes = 0
    world.fails = ({ name, mode }) =>
      name === 'write' && mode === 'durable' && writes++ === 0 ? fault : undefined
    for (let id = 1n; id < 4n; id++) assert.ok(await world.create(plant(id)))
    assert.equal(writes, 4, 'the line was written again by itself')
    assert.deepEqual(world.lines, [])
    // The space that is left stays free: there is no more padding.
    assert.ok(!world.journal().includes(0))
    await world.closeAndVerify()
  })

test('failing calls of a write over padding: no rest of it follows a shorter line', async () => {
  const world = await World.with(1)
  assert.ok(world.journal().includes(0), 'there is padding')
  let writes = 0
  world.fails = ({ name, mode }) => {
    if (name !== 'write') return undefined
    return mode === 'temporary' ? NO_SPACE : writes++ === 0 ? SHORT : undefined
  }
  assert.equal(await world.create({ id: 2n, name: 'x'.repeat(1000) }), false)
  assert.ok(await world.create(plant(3n)))
  const lines = world.journal().toString('latin1').replace(/\0+$/, '').split('\n').slice(2)
  assert.deepEqual(
    lines.map((line) => line.slice(9)),
    ['1 [["alice","1","plant 1"]]', '2 [["alice","3","plant 3"]]', ''],
  )
  await world.closeAndVerify()
})

test('failing calls of a rotation and a compaction: both are done in the end', async (t) => {
  const begin = () => World.with(0, { compactBytes: 1 })
  await eachCall(t, begin, async (world) => {
    await until('a create works', () => world.create(plant(1n)))
    await until('the journals are compacted', async () => {
      await world.create(plant(2n))
      return world.logged('compacted') > world.logged('could not be compacted')
    })
    await until('creates work', () => world.create(plant(3n)))
    assert.deepEqual(await world.names(), world.acknowledged)
    assert.equal(world.opened.unavailableReason(), undefined)
    await world.closeAndVerify()
    const names = world.disk.names(IN_MEMORY).join()
    assert.match(names, /^(plants\.sqlite,?|journal-\d+\.log,?)+$/)
  })
})

test('failing calls of a start: it opens with everything, now or the next time', async (t) => {
  const origin = new World()
  await origin.open({ compactBytes: 1, compact: notNow })
  for (let id = 1n; id < 5n; id++) assert.ok(await origin.create(plant(id)))
  const logs = () => origin.disk.names(IN_MEMORY).filter((name) => name.endsWith('.log'))
  await until('there are several journals', () => logs().length > 1)
  const killed = origin.disk.copy()
  await origin.opened.close()
  const begin = async () => new World(killed.copy())
  await eachCall(t, begin, async (world) => {
    await world.open().catch(() => world.open())
    assert.deepEqual(await world.names(), origin.acknowledged)
    await until('a create works', () => world.create(plant(9n)))
    assert.deepEqual(await world.names(), [...origin.acknowledged, 'plant 9'])
    assert.equal(world.opened.unavailableReason(), undefined)
    for (let id = 1n; id < 5n; id++) assert.ok(await world.create(plant(id)))
    await world.closeAndVerify()
  })
})

test('failing calls of a stop: it ends, and the next start finds everything', async (t) => {
  const begin = () => World.with(3)
  await eachCall(t, begin, async (world) => {
    await world.opened.close()
    await world.verify()
  })
})

for (const [name, fault] of [
  ['write', NO_SPACE],
  ['sync', UNSYNCED],
] as const)
  test(`full disk: a start whose ${name} fails reads, and refuses creates until then`, async () => {
    const world = await World.with(1)
    await world.opened.close()
    world.fails = (call) => (call.name === name && call.mode === 'temporary' ? fault : undefined)
    await world.open()
    assert.deepEqual(await world.names(), ['plant 1'])
    assert.equal(await world.create(plant(2n)), false)
    assert.ok(world.opened.unavailableReason()?.includes(fault.code))
    await world.recovers(plant(2n))
    await world.closeAndVerify()
  })

test('full disk: a write that is cut short says so from the start', async () => {
  const world = await World.with(0)
  world.fails = ({ name }) => (name === 'write' ? SHORT : undefined)
  assert.equal(await world.create(plant(1n)), false)
  assert.match(
    world.opened.unavailableReason() ?? '',
    /^the journal could not be written: no space left on the disk, .* it took \d+ of \d+ bytes$/,
  )
  await world.recovers(plant(1n))
  await world.closeAndVerify()
})

test('full disk: after a refused write, smaller ones go on without a rewrite', async () => {
  const world = await World.with(1)
  let isFull = true
  world.fails = ({ name, mode }) =>
    name === 'write' && (mode === 'temporary' || isFull) ? NO_SPACE : undefined
  assert.equal(await world.create(plant(2n)), false)
  assert.match(
    world.opened.unavailableReason() ?? '',
    /^the journal could not be written: ENOSPC: write [^:]+$/,
  )
  await until('rewriting fails', () => world.logged('plants cannot be written') > 2)
  isFull = false
  assert.ok(await world.create(plant(3n)))
  await world.closeAndVerify()
})

test('full disk: it is logged as an error once, until plants can be written again', async () => {
  const world = await World.with(0)
  for (const id of [1n, 2n]) {
    world.lines.length = 0
    world.fails = ({ name }) => (name === 'write' ? NO_SPACE : undefined)
    for (let tried = 0; tried < 5; tried++) assert.equal(await world.create(plant(id)), false)
    const [first, ...others] = world.lines.map(({ level }) => level)
    assert.deepEqual([first, new Set(others)], ['error', new Set(['debug'])])
    await world.recovers(plant(id))
  }
  await world.closeAndVerify()
})

test('full disk: a plant whose write was refused leaves its room free', async () => {
  const world = await World.with(1, { maxDataBytes: 2 ** 18 })
  const huge = { id: 2n, name: 'x'.repeat(200_000) }
  world.fails = ({ name }) => (name === 'write' ? NO_SPACE : undefined)
  assert.equal(await world.create(huge), false)
  await world.recovers(huge)
  await assert.rejects(world.opened.create(OWNER, { ...huge, id: 3n }), StoreFull)
  await world.closeAndVerify()
})

test('full disk: a plant whose write was refused counts for no owner', async () => {
  // Room for one plant of this length.
  const world = await World.with(0, { maxOwnerBytes: 40 })
  world.fails = ({ name }) => (name === 'write' ? NO_SPACE : undefined)
  const both = [world.create(plant(1n)), world.create(plant(2n))]
  assert.deepEqual(await Promise.all(both), [false, false], 'a refusal depends on the first')
  await world.recovers(plant(2n))
  assert.equal(await world.opened.create(OWNER, plant(3n)), 'overQuota')
  await world.closeAndVerify()
})

test('in doubt: a create without room in the database is told that it is full', async () => {
  const world = await World.with(1, { maxDataBytes: 65_536 })
  const store = world.opened
  world.fails = ({ path }) => (/journal/.test(path) ? NO_SPACE : undefined)
  assert.equal(await world.create(plant(2n)), false)
  const huge = { id: 3n, name: 'x'.repeat(65_536) }
  await assert.rejects(store.create(OWNER, huge), StoreFull)
  await assert.rejects(store.create(OWNER, { ...huge, id: 1n }), StoreUnavailable)
  assert.equal(await world.create(plant(4n)), false, 'a refusal takes no room')
  await world.recovers(plant(4n))
  await assert.rejects(store.create(OWNER, huge), StoreFull)
  await world.closeAndVerify()
})

test('in doubt: a create is refused at once, however long the rewriting takes', async () => {
  const world = new World()
  let [synced, end] = [Promise.resolve(), (): void => {}]
  const disk = simulatedFiles(world.disk, { onCall: (call) => world.fails(call) })
  await world.open({ files: filesWith((file) => ({ sync: () => synced.then(file.sync) }), disk) })
  synced = new Promise((resolve) => (end = resolve))
  world.fails = ({ mode, name }) => (mode === 'durable' && name === 'write' ? UNSYNCED : undefined)
  assert.equal(await world.create(plant(1n)), false)
  await until('it is rewritten', () => /log\.\w+\.tmp/.test(world.disk.names(IN_MEMORY).join()))
  assert.equal(await world.create(plant(2n)), false)
  end()
  await world.recovers(plant(2n))
  await world.closeAndVerify()
})

test('in doubt: a stop waits for the rewriting under way, and then saves memory', async () => {
  const world = new World()
  let [read, reads, end] = [Promise.resolve(), 0, (): void => {}]
  const disk = simulatedFiles(world.disk, { onCall: (call) => world.fails(call) })
  const reading = filesWith((file) => ({
    read: (bytes, at) => (reads++, read.then(() => file.read(bytes, at))),
  }), disk)
  await world.open({ files: reading })
  for (const id of [1n, 2n, 3n]) assert.ok(await world.create(plant(id)))
  read = new Promise((resolve) => (end = resolve))
  world.fails = ({ mode, name }) => (mode === 'durable' && name === 'write' ? UNSYNCED : undefined)
  assert.equal(await world.create(plant(4n)), false)
  const before = reads
  await until('it is read back', () => reads > before)
  const closed = world.opened.close()
  // All that a stop can do before the rewriting ends.
  await sleep(10)
  end()
  await closed
  assert.deepEqual(world.disk.names(IN_MEMORY).filter((name) => name.endsWith('.log')), [])
  await world.verify()
})

test('in doubt: no journal follows a torn line after a stop that cannot save memory', async () => {
  const world = new World()
  let isStopping = false
  const disk = simulatedFiles(world.disk, { onCall: (call) => world.fails(call) })
  // It takes so long that the rewriting would be due, and then it fails.
  const sync = async (): Promise<void> => {
    isStopping = true
    await sleep(20)
    throw systemError('ENOSPC', 'sync')
  }
  const slow = filesWith((_, __, path) => (/sqlite\.\w+\.tmp$/.test(path) ? { sync } : {}), disk)
  await (await openStore(IN_MEMORY, { files: disk })).close()
  await world.open({ files: slow })
  for (const id of [1n, 2n, 3n]) assert.ok(await world.create(plant(id)))
  world.fails = ({ name, mode, path }) => {
    if (name === 'write' && mode === 'durable') return SHORT
    const isNew = name === 'open' && /log\.\w+\.tmp$/.test(path)
    return name === 'truncate' || (isNew && !isStopping) ? REFUSED : undefined
  }
  assert.equal(await world.create(plant(4n)), false)
  await world.opened.close()
  assert.equal(world.logged('could not be compacted'), 1)
  await world.verify()
})

test('in doubt: no rotation before the journal is rewritten', async () => {
  const world = await World.with(0, { compactBytes: 1 })
  let [rotationFails, writes, rewrites] = [true, 0, 0]
  world.fails = ({ name, mode, path }) => {
    if (name === 'open' && /2\.log\.\w+\.tmp$/.test(path) && rotationFails) return NO_SPACE
    if (name === 'open' && /1\.log\.\w+\.tmp$/.test(path)) return (rewrites++, NO_SPACE)
    return name === 'write' && mode === 'durable' && writes++ === 1 ? UNSYNCED : undefined
  }
  assert.ok(await world.create(plant(1n)))
  // The line of this one is whole in the file, but was not acknowledged.
  assert.equal(await world.create(plant(2n)), false)
  rotationFails = false
  const before = rewrites
  await until('it was tried again', () => rewrites >= before + 3)
  await world.verify()
  await world.recovers(plant(3n))
  await world.closeAndVerify()
})

test('in doubt: no compaction before the next journal is in place', async () => {
  const world = await World.with(0, { compactBytes: 1 })
  let [broken, refused] = ['.sqlite', 0]
  world.fails = ({ name, path }) =>
    name === 'rename' && path.endsWith(broken) ? (refused++, REFUSED) : undefined
  assert.ok(await world.create(plant(1n)))
  await until('a compaction has failed', () => world.logged('could not be compacted') > 0)
  broken = '.log'
  // A compaction under way may still have succeeded. Then the next one waits until the journal is
  // a third as long as the snapshot.
  let id = 2n
  await until('the next journal is missing', async () => {
    await world.create(plant(id++, 'x'.repeat(1000)))
    return world.opened.unavailableReason() !== undefined
  })
  const before = refused
  await until('it was tried again', () => refused >= before + 3)
  await world.verify()
  await world.recovers(plant(id))
  await world.closeAndVerify()
})

test('power loss: a directory that was put back is on the disk once it is served', async () => {
  const world = await World.with(3, { compactBytes: 1 })
  await world.opened.close()
  const disk = SimulatedDisk.empty()
  disk.makeDirectory(IN_MEMORY)
  // As cp does, which syncs nothing.
  for (const name of world.disk.names(IN_MEMORY)) {
    const path = `${IN_MEMORY}/${name}`
    disk.write(disk.createOrEmpty(path), world.disk.read(world.disk.must(path)), 0)
  }
  const restored = new World(disk)
  await restored.open()
  assert.ok(await restored.create(plant(4n)))
  const names = await restored.names()
  assert.deepEqual(await namesOn(disk.afterPowerLoss([])), names)
  await restored.opened.close()
})

test('full disk: a failed compaction leaves no temporary file', async () => {
  const world = await World.with(0, { compactBytes: 1 })
  world.fails = ({ name, path }) =>
    name === 'sync' && /\.sqlite\.\w+\.tmp$/.test(path) ? UNSYNCED_FULL : undefined
  assert.ok(await world.create(plant(1n)))
  await until('a compaction has failed', () => world.logged('could not be compacted') > 0)
  // Not at once: the next attempt may be writing one.
  const isGone = () => !world.disk.names(IN_MEMORY).some((name) => /\.sqlite\.\w+\.tmp$/.test(name))
  await until('no temporary file is left', isGone)
  await world.closeAndVerify()
})

const DAMAGES: Readonly<Record<string, (sound: Buffer) => Uint8Array>> = {
  'in a line': (sound) => sound.fill(1, 100, 101),
  'without its lines': (sound) => sound.subarray(0, readHead('', sound).headBytes),
}
for (const [what, damage] of Object.entries(DAMAGES))
  test(`in doubt: a journal damaged ${what} is not rewritten; lists, a stop keep it`, async () => {
    const world = await World.with(3)
    const sound = world.journal()
    const replace = (bytes: Uint8Array): void =>
      world.disk.write(world.disk.createOrEmpty(JOURNAL), bytes, 0)
    replace(damage(Buffer.from(sound)))
    world.fails = ({ mode }) => (mode === 'durable' ? REFUSED : undefined)
    assert.equal(await world.create(plant(4n)), false)
    const why = /acknowledged lines are missing or damaged; only memory still has their plants/
    await until('rewriting fails', () => why.test(world.opened.unavailableReason() ?? ''))
    assert.deepEqual(await world.names(), world.acknowledged)
    replace(sound)
    await world.recovers(plant(5n))
    replace(damage(Buffer.from(sound)))
    world.fails = ({ mode }) => (mode === 'durable' ? REFUSED : undefined)
    assert.equal(await world.create(plant(6n)), false)
    // Memory alone has the plants now: a kill would lose them.
    await world.opened.close()
    await world.verify()
  })

test('in doubt: a plant whose write failed is not shown, and its id is free', async () => {
  const world = await World.with(1)
  world.fails = ({ mode }) => (mode === 'durable' ? UNSYNCED : undefined)
  const creates = [world.create(plant(2n)), world.create(plant(3n)), world.create(plant(2n))]
  assert.deepEqual(await Promise.all(creates), [false, false, false])
  assert.deepEqual(await world.names(), ['plant 1'])
  world.fails = NO_FAULT
  await until('creates work', () => world.opened.unavailableReason() === undefined)
  assert.ok(await world.create({ id: 2n, name: 'another plant 2' }))
  assert.deepEqual(await world.names(), ['plant 1', 'another plant 2'])
  await world.closeAndVerify()
})

test('fatal: a batch that is durable and not inserted ends the store', async (t) => {
  const world = await World.with(1)
  // Slow decisions would end the batch after one of them.
  stopClock(t)
  const { insert } = PlantDatabase.prototype
  type Rows = Parameters<typeof insert>[0]
  // One row is in the database, the other is not.
  const half = function (this: PlantDatabase, rows: Rows) {
    insert.call(this, rows.slice(0, 1))
    throw new Error('out of memory')
  }
  const broken = t.mock.method(PlantDatabase.prototype, 'insert', half)
  let late: Promise<boolean> | undefined
  world.fails = ({ name }) => {
    // The batch is closed once it is written.
    if (name === 'write') late ??= world.create(plant(4n))
    return undefined
  }
  const begun = world.opened.list(OWNER, { after: undefined, limit: undefined })
  const creates = [2n, 3n].map((id) => world.create(plant(id)))
  assert.deepEqual([...(await Promise.all(creates)), await late], [false, false, false])
  assert.deepEqual(world.fatal.map(String), ['Error: out of memory'])
  assert.equal(await world.create(plant(5n)), false)
  // SQLite promises nothing of what a statement has left that failed.
  assert.throws(() => begun.next(), StoreUnavailable)
  await assert.rejects(world.names(), StoreUnavailable)
  assert.match(world.opened.unavailableReason() ?? '', /memory and journal may differ/)
  await world.opened.close()
  broken.mock.restore()
  await world.verify()
  // What was not answered is durable: the next start has it, and a repeated create is safe.
  const again = new World(world.disk)
  await again.open()
  assert.deepEqual(await again.names(), ['plant 1', 'plant 2', 'plant 3'])
  assert.ok(await again.create(plant(2n)))
  await again.opened.close()
})

test('fatal: a database that fails ends the store, and no create hangs', async (t) => {
  const world = await World.with(1)
  // Slow decisions would end the batch after one of them.
  stopClock(t)
  // The first create of the batch is decided, the second fails, the third waits.
  const { existing } = PlantDatabase.prototype
  type Row = Parameters<typeof existing>[0]
  const broken = t.mock.method(
    PlantDatabase.prototype,
    'existing',
    function (this: PlantDatabase, row: Row) {
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
