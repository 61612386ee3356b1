import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { NewPlant } from '../../dist/plants/plant.js'
import { StoreUnavailable } from '../../dist/plants/store.js'
import { type Compact, compact, type Compacted } from '../../dist/store/sqljs/compaction.js'
import type { SqljsStore } from '../../dist/store/sqljs/sqljs-store.js'
import { checkDirectory } from '../../dist/store/sqljs/inspect.js'
import { plant } from '../contract/store.contract.ts'
import { list, openStore as openStoreOver } from '../store/sqljs/fixtures.ts'
import { seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { type DiskCall, type Fate, type Fault, type Pending } from './simulated-disk.ts'
import { faultsOf, NO_SPACE, REFUSED, SimulatedDisk, simulatedFiles } from './simulated-disk.ts'

/** PLANTS_TEST_ALL_STATES=1 tries every state described here; else the seed chooses some. */
const ALL_STATES = process.env['PLANTS_TEST_ALL_STATES'] === '1'
const CHECKED = THOROUGH ? 0.1 : 0.03
/** The share of those in which all is lost that may be: many moments share such a state. */
const ALL_LOST = THOROUGH ? 1 : 0.1
/** The share of the states, of the moments of a kill, and of the runs with one failed call. */
const [STATES, KILLS, RUNS] = THOROUGH ? [0.4, 0.06, 0.05] : [0.002, 0.004, 0.0015]
/** The share of the moments at which most can be lost, and of the calls at which a stop comes. */
const EVENTFUL = THOROUGH ? 1 : 0.1
const DIRECTORY = '/srv/plants/data'
const OWNERS = ['alice', 'bob'] as const

type Owner = (typeof OWNERS)[number]

/** How much had been sent and told. */
interface Progress {
  readonly sent: number
  readonly told: number
}

/** What clients sent and were told, in order. What they were told must stay true. */
class History {
  readonly #sent: { readonly owner: Owner; readonly text: string }[] = []
  readonly #told: { readonly owner: Owner; readonly text: string }[] = []

  get progress(): Progress {
    return { sent: this.#sent.length, told: this.#told.length }
  }

  async create(store: SqljsStore, owner: Owner, created: NewPlant): Promise<void> {
    const text = textOf(created)
    this.#sent.push({ owner, text })
    try {
      if ((await store.create(owner, created)) === 'stored') this.#told.push({ owner, text })
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error
    }
  }

  /** A list that was shown: its plants must not vanish, and must have been sent. */
  show(plants: ReadonlyMap<Owner, readonly string[]>): void {
    for (const [owner, texts] of plants) for (const text of texts) this.#told.push({ owner, text })
  }

  check(found: ReadonlyMap<Owner, readonly string[]>, { sent, told }: Progress): void {
    for (const owner of OWNERS) {
      const texts = found.get(owner) ?? []
      const of = (each: { readonly owner: Owner }): boolean => each.owner === owner
      const allowed = this.#sent.slice(0, sent).filter(of)
      for (const { text } of this.#told.slice(0, told).filter(of))
        assert.ok(texts.includes(text), `${owner}: ${text} was acknowledged, and is lost`)
      for (const text of texts)
        assert.ok(
          allowed.some((each) => each.text === text),
          `${owner}: ${text} was never sent`,
        )
      const ids = new Set(texts.map((text) => text.split(' ')[0]))
      assert.equal(ids.size, texts.length, 'two plants have one id')
    }
  }

  /** As it was at a moment. */
  upTo({ sent, told }: Progress): History {
    const copy = new History()
    copy.#sent.push(...this.#sent.slice(0, sent))
    copy.#told.push(...this.#told.slice(0, told))
    return copy
  }
}

/** A plant as text with its id, which a list does not show: every name begins with it. */
function textOf({ name, tag }: { readonly name: string; readonly tag?: string }): string {
  return tag === undefined ? name : `${name} #${tag}`
}

/** The disk at one call of a run, and what had been sent and told by then. */
interface Moment extends Progress {
  readonly at: string
  readonly disk: SimulatedDisk
}

interface Machine {
  readonly disk: SimulatedDisk
  readonly history: History
  readonly moments: Moment[]
  /** Which call fails, counted from 0, and how. */
  readonly fault?: { readonly call: number; readonly fault: Fault }
  /** Which calls fail during the whole run. */
  readonly faults?: (call: DiskCall) => Fault | undefined
  /** How it compacts while creates go on. */
  readonly compact?: Compact
}

/** Those under way. The first one of a process waits until SQLite is compiled. */
const compactions = new Set<Promise<Compacted>>()

function openStore(machine: Machine): Promise<SqljsStore> {
  const { disk, history, moments, fault, faults } = machine
  const record = (at: string): void =>
    void moments.push({ at, disk: disk.copy(), ...history.progress })
  let calls = moments.filter(({ at }) => !at.startsWith('in ')).length
  let call = ''
  const files = simulatedFiles(disk, {
    onCall(each) {
      call = `${each.name} ${each.path}`
      record(`before ${calls} ${call}`)
      return calls++ === fault?.call ? fault.fault : faults?.(each)
    },
    onWriting: () => record(`in ${call}`),
  })
  const run = machine.compact ?? ((job) => compact(files, job))
  return openStoreOver(DIRECTORY, {
    files,
    compact(job, signal) {
      const compaction = run(job, signal)
      compactions.add(compaction)
      const ended = (): void => void compactions.delete(compaction)
      compaction.then(ended, ended)
      return compaction
    },
    compactBytes: 1,
    // About 1,200 bytes: small lines share a journal, and a large one ends it.
    compactShare: machine.compact ? 0 : 0.1,
    // Padding for several small lines, and for no large one.
    paddingBytes: 1000,
    retryMs: 1,
  })
}

async function listed(store: SqljsStore): Promise<ReadonlyMap<Owner, readonly string[]>> {
  const texts = async (owner: Owner) => [owner, (await list(store, owner)).map(textOf)] as const
  return new Map(await Promise.all(OWNERS.map(texts)))
}

/** Lets the store finish its background work. Only a retry waits for a timer. */
async function settle(): Promise<void> {
  do {
    await Promise.allSettled(compactions)
    for (let i = 0; i < 30; i++) await new Promise((resolve) => setImmediate(resolve))
  } while (compactions.size > 0)
}

/**
 * One run of the store: a start, batches, rotations and compactions during writes, a clean stop, a
 * start on what that left, a stop without writes, and a start that writes again.
 */
async function runOnce(machine: Machine, patient: boolean): Promise<void> {
  const { history, moments, disk } = machine
  const large = 'x'.repeat(3000)
  const pause = async (): Promise<void> => {
    await settle()
    // Retries wait for a timer.
    if (patient) await sleep(3)
  }
  const run = async (use: (store: SqljsStore) => Promise<void>, close: boolean): Promise<void> => {
    const store = await openStore(machine).catch((error: unknown) => {
      // Only a failed call keeps a store from being opened, and only while it fails.
      if (!machine.fault) throw error
      return openStore(machine)
    })
    await use(store)
    await pause()
    history.show(await listed(store))
    if (close) await store.close()
  }
  await run(async (store) => {
    await Promise.all([
      history.create(store, 'alice', plant(1n, '1 a')),
      history.create(store, 'bob', plant(1n, '1 b', 't')),
      history.create(store, 'alice', plant(2n, '2')),
    ])
    await history.create(store, 'alice', plant(3n, '3'))
    await Promise.all([
      history.create(store, 'alice', plant(4n, '4 first')),
      history.create(store, 'alice', plant(4n, '4 second')),
    ])
    await pause()
    // A client repeats a create without an answer, and another one takes the same id.
    await history.create(store, 'alice', plant(3n, '3'))
    await history.create(store, 'alice', plant(4n, '4 second'))
    for (let id = 5n; id < 13n; id++) {
      void history.create(store, 'bob', plant(id, `${id} ${large}`))
      if (id % 3n === 0n) await pause()
    }
    await history.create(store, 'alice', plant(20n, '20'))
    await pause()
    await history.create(store, 'alice', plant(21n, '21'))
  }, true)
  await run(async (store) => {
    await history.create(store, 'alice', plant(30n, '30'))
    await history.create(store, 'alice', plant(21n, '21'))
  }, true)
  await run(async () => {}, true)
  await run(async (store) => {
    await history.create(store, 'alice', plant(40n, '40'))
    await history.create(store, 'bob', plant(41n, '41'))
  }, false)
  moments.push({ at: 'the end', disk: disk.copy(), ...history.progress })
}

const MAX_SUBSETS_OF = 5

/**
 * The combinations that are worth trying: none and all of the pending changes, every subset of a
 * few, one alone, all but one, and writes in part.
 */
function* fatesOf(
  pending: readonly Pending[],
  random: () => number,
): Generator<() => readonly Fate[]> {
  const all = (fate: Fate): Fate[] => pending.map(() => fate)
  yield () => all('lost')
  yield () => all('kept')
  if (pending.length <= MAX_SUBSETS_OF) {
    for (let bits = 1; bits < 2 ** pending.length - 1; bits++)
      yield () => pending.map((_, i) => ((bits >> i) & 1 ? 'kept' : 'lost'))
  } else {
    for (const i of pending.keys()) {
      yield () => all('lost').with(i, 'kept')
      yield () => all('kept').with(i, 'lost')
    }
    const some = (): Fate[] => pending.map(() => (random() < 0.5 ? 'kept' : 'lost'))
    for (let i = 0; i < 10; i++) yield some
  }
  for (const [i, { lengthBytes, textBytes }] of pending.entries()) {
    if (textBytes < 3) continue
    const [first = 1, second = 1] = [
      1 + Math.floor(random() * (textBytes - 1)),
      1 + Math.floor(random() * (textBytes - 1)),
    ].toSorted((a, b) => a - b)
    const cuts = [
      [0, 1],
      [0, first],
      [0, textBytes - 1],
      [first, textBytes],
      [1, textBytes],
      [first, second],
      [0, first, second, textBytes],
    ]
    // A line with padding: the one without the other, and each in part.
    if (textBytes < lengthBytes)
      cuts.push(
        [0, textBytes],
        [textBytes, lengthBytes],
        [0, first, second, lengthBytes - 1],
        [0, textBytes + 1],
      )
    for (const [from = 0, to = 0, from2 = 0, to2 = 0] of cuts) {
      const fate: Fate = [
        { from, to },
        { from: from2, to: to2 },
      ]
      yield () => all('kept').with(i, fate)
      yield () => all('lost').with(i, fate)
    }
  }
}

interface Recovered {
  readonly found: ReadonlyMap<Owner, readonly string[]>
  /** If the store was closed and opened again. */
  readonly foundAgain?: ReadonlyMap<Owner, readonly string[]>
}

/**
 * What was recovered from each disk, by its digest. Many power losses leave the same one, and what
 * a start finds depends on nothing else.
 */
const recovered = new Map<string, Recovered>()

/** Opens what is left. `thorough` then closes, checks and opens it again. */
async function recover(disk: SimulatedDisk, thorough: boolean): Promise<Recovered> {
  let closing = false
  // A close that cannot write is faster.
  const machine: Machine = {
    disk,
    history: new History(),
    moments: [],
    faults: () => (closing && !thorough ? REFUSED : undefined),
  }
  const store = await openStore(machine)
  const found = await listed(store)
  assert.equal(store.unavailableReason(), undefined)
  closing = true
  await store.close()
  if (!thorough) return { found }
  const files = simulatedFiles(disk)
  // A store of no plants leaves nothing but its lock, and this disk has none.
  if ((await files.list(DIRECTORY)).length > 0) await checkDirectory(DIRECTORY, files)
  const again = await openStore(machine)
  const foundAgain = await listed(again)
  await again.close()
  return { found, foundAgain }
}

async function recoverEach(
  moment: Moment,
  history: History,
  random: () => number,
  share: number,
): Promise<number> {
  const seen = new Set<string>()
  let at = 0
  for (const fates of fatesOf(moment.disk.pending(), random)) {
    if (!ALL_STATES && random() > (at++ === 0 ? ALL_LOST : share * STATES)) continue
    const disk = moment.disk.afterPowerLoss(fates())
    const digest = disk.digest()
    if (seen.has(digest)) continue
    seen.add(digest)
    const before = disk.copy()
    try {
      const thorough = random() < CHECKED
      let known = recovered.get(digest)
      if (!known || (thorough && !known.foundAgain)) known = await recover(disk, thorough)
      recovered.set(digest, known)
      history.check(known.found, moment)
      if (known.foundAgain) history.check(known.foundAgain, moment)
    } catch (error) {
      const files = before
        .describe()
        .replaceAll(/[^{},]{80,}/g, (base64) => `${base64.slice(0, 60)}…`)
      const what = `after a power loss ${moment.at}, with ${files}: ${String(error)}`
      throw new Error(what, { cause: error })
    }
  }
  return seen.size
}

function newMachine(parts: Partial<Machine> = {}): Machine {
  const disk = SimulatedDisk.empty()
  disk.makeDirectory('/srv')
  disk.syncDirectory('/')
  return { disk, history: new History(), moments: [], ...parts }
}

async function runOf(parts: Partial<Machine> = {}): Promise<Machine> {
  const machine = newMachine(parts)
  await runOnce(machine, machine.fault !== undefined)
  return machine
}

/** The run without a failed call: it is the same each time. */
let sound: Promise<Machine> | undefined
function soundRun(): Promise<Machine> {
  return (sound ??= runOf())
}

test('crash states: a power loss at any call loses nothing acknowledged', async (t) => {
  const { random } = seeded(t)
  const { moments, history } = await soundRun()
  const reached = moments.map(({ at }) =>
    at.replace(/^(before \d+|in) (\S+) .*\/data\/?/, '$2 ').replace(/\.\w+\.tmp/, '.tmp'),
  )
  for (const name of [
    'rename plants.sqlite',
    'remove journal-00000001.log',
    'rename journal-00000003.log',
    'sync plants.sqlite.tmp',
  ])
    assert.ok(reached.includes(name), `the run should reach ${name}`)
  const kinds = moments
    .filter(({ at }) => at.startsWith('in write'))
    .flatMap(({ disk }) => disk.pending().filter(({ lengthBytes }) => lengthBytes > 0))
    .map((write) => write.inPlace || (write.textBytes < write.lengthBytes ? 'padded' : 'longer'))
  assert.equal(new Set(kinds).size, 3, 'the run should have each kind of write')
  let states = 0
  for (const moment of moments) states += await recoverEach(moment, history, random, 1)
  t.diagnostic(`${states} states after ${moments.length} moments`)
})

const NO_SNAPSHOTS: Machine['faults'] = ({ name, mode }) =>
  name === 'write' && mode === 'temporary' ? NO_SPACE : undefined
for (const [what, eventful, shares, faults] of [
  // Most can be lost where a name is about to become durable.
  ['answers after a kill', /syncDirectory/, [0.4, 0.1], undefined],
  // Between a write and its sync, a start may show what only the page cache has.
  ['lists after a kill on a full disk', /^in write/, [0.05 / STATES, 0.04], NO_SNAPSHOTS],
] as const)
  test(`crash states: ${what} survive a later power loss`, async (t) => {
    const { random } = seeded(t)
    const { moments, history } = await soundRun()
    let [starts, states] = [0, 0]
    for (const moment of moments) {
      const isEventful = eventful.test(moment.at)
      if (!ALL_STATES && random() > (isEventful ? EVENTFUL : KILLS)) continue
      starts += 1
      const share = Math.min(1, shares[isEventful ? 0 : 1])
      states += await killedThenLost(moment, history, random, share, faults)
    }
    assert.ok(states > 0)
    t.diagnostic(`${states} states after ${starts} kills`)
  })

/**
 * A run whose stop abandons a compaction at this call of its thread, with the moments since then;
 * undefined if it has fewer.
 */
async function abandonedAt(last: number): Promise<Machine | undefined> {
  let [calls, before] = [0, 0]
  let closed: Promise<void> | undefined
  const compactUntil: Compact = (job) => {
    const onCall = (): Fault | undefined => {
      if (calls++ < last) return undefined
      // The moments until then are the same whatever call is the last.
      if (!closed) before = machine.moments.length
      closed ??= store.close()
      return REFUSED
    }
    return compact(simulatedFiles(machine.disk, { onCall }), job)
  }
  const machine = newMachine({ compact: compactUntil })
  const { disk, history } = machine
  const store = await openStore(machine)
  for (const id of [1n, 2n]) void history.create(store, 'alice', plant(id, `${id}`))
  await settle()
  if (!closed) return undefined
  await closed
  machine.moments.push({ at: 'the end', disk: disk.copy(), ...history.progress })
  machine.moments.splice(0, before)
  return machine
}

test('crash states: a stop that abandons a compaction loses nothing by a power loss', async (t) => {
  const { random } = seeded(t)
  let [calls, states] = [0, 0]
  for (; ; calls++) {
    if (!ALL_STATES && random() > EVENTFUL) continue
    const machine = await abandonedAt(calls)
    if (!machine) break
    const { moments, history } = machine
    for (const moment of moments) states += await recoverEach(moment, history, random, 0.3)
    const files = await simulatedFiles(moments.at(-1)?.disk ?? assert.fail()).list(DIRECTORY)
    assert.deepEqual([files.length, files.includes('plants.sqlite')], [2, true])
  }
  assert.ok(calls > 8)
  t.diagnostic(`${states} states at some of ${calls} calls`)
})

/**
 * Kills the process at a moment, starts another one that reads and writes, and lets the power fail
 * at each of its calls and after them.
 */
async function killedThenLost(
  moment: Moment,
  before: History,
  random: () => number,
  share: number,
  faults?: Machine['faults'],
): Promise<number> {
  const history = before.upTo(moment)
  const disk = moment.disk.copy()
  const machine: Machine = { disk, history, moments: [], ...(faults ? { faults } : {}) }
  const store = await openStore(machine)
  const shown = await listed(store)
  history.check(shown, moment)
  history.show(shown)
  machine.moments.push({ at: 'after the start', disk: disk.copy(), ...history.progress })
  // Existing plants are created again: `stored` must not be told for what only memory holds.
  for (const owner of OWNERS) {
    const [text] = shown.get(owner) ?? []
    if (text !== undefined && !text.includes('#'))
      await history.create(store, owner, plant(BigInt(text.split(' ')[0] ?? ''), text))
  }
  await history.create(store, 'alice', plant(50n, '50'))
  await settle()
  machine.moments.push({ at: 'at the end', disk: disk.copy(), ...history.progress })
  let states = 0
  for (const later of machine.moments)
    states += await recoverEach(
      { ...later, at: `${later.at}, after a kill ${moment.at}` },
      history,
      random,
      share,
    )
  await store.close()
  return states
}

test('crash states: a power loss after any failed call loses nothing acknowledged', async (t) => {
  const { random } = seeded(t)
  const calls = (await soundRun()).moments.flatMap(
    ({ at }) => /^before (\d+) (\S+) /.exec(at)?.slice(1) ?? [],
  )
  let [runs, states] = [0, 0]
  for (let i = 0; i < calls.length; i += 2) {
    // What the run recorded.
    const [call, name] = [Number(calls[i]), calls[i + 1] as DiskCall['name']]
    for (const fault of faultsOf(name)) {
      if (!ALL_STATES && random() > RUNS) continue
      runs += 1
      const { moments, history } = await runOf({ fault: { call, fault } })
      const failedAt = moments.findIndex(({ at }) => at.startsWith(`before ${call} `))
      for (const moment of moments.slice(failedAt)) {
        if (!ALL_STATES && random() > 0.15) continue
        const later = {
          ...moment,
          at: `${moment.at}, after ${fault.code} (${fault.how}) ${moments[failedAt]?.at}`,
        }
        states += await recoverEach(later, history, random, 0.2)
        // Once more with a kill first: then no process knows what a failed sync left.
        if (random() < 0.05) states += await killedThenLost(later, history, random, 0.05)
      }
    }
  }
  t.diagnostic(`${states} states after ${runs} runs with one failed call each`)
})
