import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { NewPlant, Plant } from '../../dist/plants/plant.js'
import { type Created, MAX_PLANT_BYTES, type PlantChunk } from '../../dist/plants/store.js'
import { type PlantList, type PlantRange, type PlantStore } from '../../dist/plants/store.js'
import { PlantTooLarge, StoreUnavailable } from '../../dist/plants/store.js'
import { seeded } from '../support/random.ts'
import { someOf, THOROUGH } from '../support/scale.ts'
import { until } from '../support/time.ts'

/** A storage under test. */
export interface StoreUnderTest {
  readonly store: PlantStore
  /**
   * Closes the store, where it is open, and opens it again over the same plants. A storage whose
   * close loses them has none.
   */
  reopen?(): Promise<PlantStore>
  /**
   * From now on creates reach the disk (or the cluster), but are not answered until the returned
   * function is called.
   */
  hold(): () => void
  /** Stores new plants in less time than the store's own creates take. */
  fill?(owner: string, plants: readonly NewPlant[]): Promise<void>
}

/**
 * Opens a storage that holds nothing; it is closed and checked when the test ends. Only a test that
 * says so calls `hold`.
 */
export type StoreFactory = (t: TestContext, willHold: boolean) => Promise<StoreUnderTest>

/** After `hold`, calls wait for `passed` until the function that `hold` returned is called. */
export class Gate {
  passed: Promise<void> | undefined
  #resolve = (): void => {}

  readonly hold = (): (() => void) => {
    this.passed = new Promise((resolve) => (this.#resolve = resolve))
    return this.release
  }

  readonly release = (): void => {
    this.passed = undefined
    this.#resolve()
  }
}

/** A storage that can be reopened and is closed when the test ends. Its creates pass a gate. */
export async function underTest(
  t: TestContext,
  open: () => Promise<PlantStore>,
  { hold, release }: Gate,
): Promise<Required<Omit<StoreUnderTest, 'fill'>>> {
  let current = await open()
  t.after(() => {
    // A test that failed may still hold it.
    release()
    return current.close()
  })
  return {
    store: current,
    async reopen() {
      await current.close()
      current = await open()
      return current
    },
    hold,
  }
}

/** The range of a whole list, from which tests take others. */
export const ALL: PlantRange = { after: undefined, limit: undefined }
const LONGEST = THOROUGH ? 2 ** 20 : 2 ** 16
const MIN = -(2n ** 63n)
const MAX = 2n ** 63n - 1n

export function plant(id: bigint, name = `plant ${id}`, tag?: string): NewPlant {
  return tag === undefined ? { id, name } : { id, name, tag }
}

export function shown({ name, tag }: NewPlant): Plant {
  return tag === undefined ? { name } : { name, tag }
}

/** A whole list, read to its end. */
export async function readAll(list: PlantList): Promise<Plant[]> {
  return (await readPage(list)).plants
}

/** The plants of a chunk, each with a name and at most a tag. */
function read({ json, count }: PlantChunk): Plant[] {
  assert.ok(json.isWellFormed())
  const plants = JSON.parse(json) as Plant[]
  assert.equal(plants.length, count)
  return plants
}

async function readPage(
  list: PlantList,
): Promise<{ readonly plants: Plant[]; readonly next: bigint | undefined }> {
  const plants: Plant[] = []
  let last: PlantChunk | undefined
  for (let step = await list.next(); !step.done; step = await list.next()) {
    assert.ok(!last || (last.next !== undefined && step.value.count > 0), 'chunk after the end')
    last = step.value
    plants.push(...read(last))
  }
  assert.ok(last, 'an empty list has a chunk too')
  return { plants, next: last.next }
}

async function create(store: PlantStore, owner: string, plants: readonly NewPlant[]) {
  const created = await Promise.all(plants.map((each) => store.create(owner, each)))
  assert.deepEqual(new Set(created), new Set(plants.map(() => 'stored')))
}

/** Stores plants that the test only reads. */
async function fill({ store, fill }: StoreUnderTest, owner: string, plants: readonly NewPlant[]) {
  return fill ? fill(owner, plants) : create(store, owner, plants)
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Texts that a store may take for others, each for itself. */
export const ODD_TEXTS: readonly string[] = [
  ...['', 'a', 'A', ' a', 'a ', 'a\u0000', 'a\u0000b', 'a\u0000c', '\u0000', '\u0000\u0000'],
  ...['é', 'e\u0301', '\ufeff', '\ufeff\ufeff', '\ufeffa', 'a\ufeff', '\uffff\ufffe\ufffd'],
  ...['🌵🪴', '👩‍🌾', '\u{10ffff}', '\n', '\r\n', '\u2028\u2029', '\u0001\u001f\u007f'],
  ...['"\\/', "'", '%', '_', '1', '1.0', '1 a', 'null', '[1]', "'; DROP TABLE plants; --"],
]

const LONG_LIST = THOROUGH ? 6000 : 1500

/** What HTTP needs of any storage. A long list has this many plants, a multiple of 1500. */
export function storeContract(name: string, open: StoreFactory, long = LONG_LIST): void {
  const contract = (
    behaviour: string,
    run: (under: StoreUnderTest, t: TestContext) => Promise<void>,
    willHold = false,
  ): void => {
    test(`${name}: ${behaviour}`, async (t) => run(await open(t, willHold), t))
  }

  contract('an empty store lists nothing, and is available', async ({ store }) => {
    assert.deepEqual(await readPage(store.list('alice', ALL)), { plants: [], next: undefined })
    await until('there is no unavailableReason', () => store.unavailableReason() === undefined)
  })

  contract('other names and tags are conflicts that change nothing', async ({ store }) => {
    const plants = [plant(1n, 'Oak', 'old'), plant(2n, 'Elm'), plant(3n, 'a\u0000b')]
    await create(store, 'alice', plants)
    for (const other of [
      plant(1n, 'Elm', 'old'),
      plant(1n, 'Oak', 'new'),
      plant(1n, 'Oak'),
      plant(1n, 'Oak', ''),
      plant(2n, 'Elm', ''),
      plant(3n, 'a\u0000c'),
      plant(3n, 'a'),
    ])
      assert.equal(await store.create('alice', other), 'conflict')
    assert.deepEqual(await readAll(store.list('alice', ALL)), plants.map(shown))
  })

  contract('each owner has its own ids, plants and lists', async ({ store }) => {
    for (const owner of ODD_TEXTS)
      assert.equal(await store.create(owner, plant(7n, `of ${owner}`)), 'stored')
    for (const owner of ODD_TEXTS) {
      assert.equal(await store.create(owner, plant(7n, 'other')), 'conflict')
      assert.deepEqual(await readAll(store.list(owner, ALL)), [{ name: `of ${owner}` }])
    }
    assert.deepEqual(await readAll(store.list('no owner', ALL)), [])
  })

  contract('ids are exact over all of int64, and ascend', async ({ store, reopen }) => {
    const edges = [MAX, MIN, MAX - 1n, MIN + 1n, 2n ** 53n, 2n ** 53n + 1n, -(2n ** 53n)]
    const ids = [...edges, 0n, -1n, 1n, 10n, 9n, -10n, -9n, -(2n ** 53n) - 1n]
    for (const id of ids) assert.equal(await store.create('alice', plant(id)), 'stored')
    const ascending = ids.toSorted((a, b) => (a < b ? -1 : 1)).map((id) => shown(plant(id)))
    assert.deepEqual(await readAll(store.list('alice', ALL)), ascending)
    if (reopen) assert.deepEqual(await readAll((await reopen()).list('alice', ALL)), ascending)
  })

  contract('a list begins after `after`, is cut at `limit`, and says where', async ({ store }) => {
    const plants = [10n, 20n, MAX].map((id) => plant(id))
    await create(store, 'alice', plants)
    for (const [after, limit, first, end, next] of [
      [undefined, undefined, 0, 3, undefined],
      [undefined, 0, 0, 0, undefined],
      [undefined, 2, 0, 2, 20n],
      [undefined, 3, 0, 3, undefined],
      [MIN, undefined, 0, 3, undefined],
      [10n, undefined, 1, 3, undefined],
      [10n, 1, 1, 2, 20n],
      [10n, 2, 1, 3, undefined],
      [15n, undefined, 1, 3, undefined],
      [MAX - 1n, undefined, 2, 3, undefined],
      [MAX, undefined, 3, 3, undefined],
    ] as const) {
      const page = await readPage(store.list('alice', { ...ALL, after, limit }))
      const expected = { plants: plants.slice(first, end).map(shown), next }
      assert.deepEqual(page, expected, `after ${after}, ${limit} at most`)
    }
  })

  contract('lists of one plant, before and after its id, find it', async ({ store }) => {
    const ids = [MIN, -1n, 0n, 7n, MAX]
    await create(
      store,
      'alice',
      ids.map((id) => plant(id)),
    )
    await create(store, 'bob', [plant(6n)])
    for (const id of ids.flatMap((each) => [each - 1n, each, each + 1n])) {
      if (id < MIN || id > MAX) continue
      const { value } = await store.list('alice', { ...ALL, after: id - 1n, limit: 1 }).next()
      const [found, following] = ids.filter((each) => each >= id)
      assert.equal(value?.count, found === undefined ? 0 : 1)
      assert.equal(value?.next, following === undefined ? undefined : found, `from ${id} on`)
      if (ids.includes(id)) assert.equal(value?.json, JSON.stringify([shown(plant(id))]))
      // As CONTRIBUTING.md has it.
      const { value: later } = await store.list('alice', { ...ALL, after: id, limit: 1 }).next()
      const isLast = value?.next === undefined && later?.count === 0
      assert.equal(value?.count === 1 && (value.next === id || isLast), ids.includes(id))
    }
  })

  contract('a long list comes in chunks, whole and in order', async (under, t) => {
    const { store } = under
    const count = long
    const plants = Array.from({ length: count }, (_, i) => plant(BigInt(i)))
    await create(store, 'alice', plants.slice(0, 500))
    await fill(under, 'alice', plants.slice(500))
    await create(store, 'alicf', [plant(1n)])
    const read = async (limit: number | undefined, first = 0): Promise<void> => {
      const after = first === 0 ? undefined : BigInt(first - 1)
      const page = await readPage(store.list('alice', { ...ALL, after, limit }))
      const end = first + (limit ?? Infinity)
      const next = end < count ? BigInt(end - 1) : undefined
      assert.deepEqual(page, { plants: plants.slice(first, end).map(shown), next })
    }
    await read(undefined)
    const limits = [999, 1000, 1001, 1002, count / 2, count - 1, count, count + 1, 2 ** 31 - 1]
    for (const limit of someOf(seeded(t).random, limits, 3)) await read(limit)
    await read(count / 3, count / 3)
  })

  contract('a page skips no plant and has none twice, whatever is created', async (under, t) => {
    const { store } = under
    const { random } = seeded(t)
    const old = Array.from({ length: Math.min(long, 3000) }, (_, i) => plant(BigInt(4 * i), 'old'))
    await fill(under, 'alice', old)
    for (let round = 1n; round < 4n; round++) {
      const limit = Math.ceil(random() * 1.2 * old.length)
      const list = store.list('alice', { ...ALL, limit })
      const found: Plant[] = []
      let next: bigint | undefined
      for (let step = await list.next(); !step.done; step = await list.next()) {
        found.push(...read(step.value))
        next = step.value.next
        // Before and after what is read already.
        const ids = [0, 1, 2].map(() => BigInt(4 * Math.floor(random() * old.length)) + round)
        const created = ids.map((id) => plant(id, `new ${id}`))
        await create(store, 'alice', created)
      }
      assert.ok(found.length <= limit)
      const shownOld = found.filter(({ name }) => name === 'old').length
      assert.equal(shownOld, next === undefined ? old.length : Number(next / 4n) + 1)
      const newNames = found.map(({ name }) => name).filter((name) => name !== 'old')
      assert.equal(new Set(newNames).size, newNames.length)
    }
  })

  contract('a list holds all that was acknowledged before', async ({ store }, t) => {
    const { random } = seeded(t)
    const perWriter = Math.min(long / 25, THOROUGH ? 150 : 30)
    const acknowledged = new Set<string>()
    let running = true
    const writers = Array.from({ length: 8 }, async (_, writer) => {
      for (let i = 0; i < perWriter; i++) {
        const created = plant(BigInt(Math.floor(random() * 1e9)) * 8n + BigInt(writer))
        assert.equal(await store.create('alice', created), 'stored')
        acknowledged.add(created.name)
      }
    })
    const reader = async (): Promise<void> => {
      while (running) {
        const before = [...acknowledged]
        const limit = random() < 0.5 ? undefined : Math.ceil(random() * 10 * perWriter)
        const { plants, next } = await readPage(store.list('alice', { ...ALL, limit }))
        const names = new Set(plants.map(({ name }) => name))
        assert.equal(names.size, plants.length)
        if (next !== undefined) assert.ok(plants.length <= (limit ?? 0))
        for (const name of before)
          assert.ok(names.has(name) || (next !== undefined && BigInt(name.slice(6)) > next), name)
        await sleep(4)
      }
    }
    const reading = reader()
    await Promise.all(writers)
    running = false
    await reading
  })

  contract('each chunk shows what is durable when it is read', async (under) => {
    const { store } = under
    const count = Math.min(long, 3000)
    const even = Array.from({ length: count }, (_, i) => plant(2n * BigInt(i)))
    await fill(under, 'alice', even)
    const list = store.list('alice', ALL)
    const first = (await list.next()).value ?? assert.fail()
    const next = first.next ?? assert.fail()
    await create(store, 'alice', [plant(next - 1n, 'before'), plant(next + 1n, 'after')])
    const { plants } = await readPage(list)
    assert.deepEqual(plants[0], { name: 'after' })
    assert.equal(first.count + plants.length, count + 1)
    assert.equal((await readAll(store.list('alice', ALL))).length, count + 2)
  })

  contract('a list that is left before its end disturbs no other', async (under) => {
    const { store } = under
    const count = Math.min(long, 3000)
    const plants = Array.from({ length: count }, (_, i) => plant(BigInt(i)))
    await fill(under, 'alice', plants)
    for (const limit of [undefined, count - 500]) {
      await store.list('alice', { ...ALL, limit }).next()
    }
    await create(store, 'alice', [plant(-1n)])
    assert.equal((await readAll(store.list('alice', ALL))).length, count + 1)
  })

  contract('every text comes back unchanged, also a very long one', async ({ store, reopen }) => {
    const long = ['\u0001', 'x', '🌵', '\u0000'].map((text, i) => text.repeat(LONGEST >> i))
    const texts = [...ODD_TEXTS, ...long]
    const plants = texts.flatMap((text, i) => [
      plant(BigInt(2 * i), text),
      plant(BigInt(2 * i + 1), `tag ${i}`, text),
    ])
    await create(store, 'alice', plants)
    for (const each of plants) assert.equal(await store.create('alice', each), 'stored')
    const wanted = plants.map(shown)
    // Not deepEqual: a difference of megabytes takes it minutes to describe.
    const same = (found: readonly Plant[]): boolean =>
      found.length === wanted.length &&
      wanted.every(({ name, tag }, i) => found[i]?.name === name && found[i]?.tag === tag)
    assert.ok(same(await readAll(store.list('alice', ALL))))
    if (reopen) assert.ok(same(await readAll((await reopen()).list('alice', ALL))))
  })

  contract('a plant may have 16 MiB as JSON text, and not a byte more', async ({ store, fill }) => {
    const room = MAX_PLANT_BYTES - Buffer.byteLength('{"name":"","tag":"é"}')
    // Of 6, 4 and 1 bytes as JSON.
    const text = '\u0001🌱x'
    const fits = text.repeat(Math.floor(room / 11)) + 'x'.repeat(room % 11)
    const createBig = (name: string) => store.create('alice', plant(1n, name, 'é'))
    await assert.rejects(createBig(`${fits}x`), PlantTooLarge)
    // To a cluster it takes seconds.
    if (THOROUGH || !fill) assert.equal(await createBig(fits), 'stored')
  })

  contract('of two plants with one id at once, one is stored', async ({ store }) => {
    const rounds = THOROUGH ? 20n : 3n
    for (let round = 0n; round < rounds; round++) {
      // The first is in flight when the others come, which then meet it and each other.
      const contents = ['first', 'second', 'third', 'second', 'first']
      const created = await Promise.all(
        contents.map((name) => store.create('alice', plant(round, name))),
      )
      const [kept] = await readAll(store.list('alice', { ...ALL, after: round - 1n, limit: 1 }))
      created.forEach((what, i) =>
        assert.equal(what, contents[i] === kept?.name ? 'stored' : 'conflict'),
      )
    }
    assert.equal((await readAll(store.list('alice', ALL))).length, Number(rounds))
  })

  const waiting = (
    behaviour: string,
    run: (store: PlantStore, hold: () => () => void) => Promise<void>,
  ): void => contract(behaviour, async ({ store, hold }) => run(store, hold), true)

  waiting('a list and a repeated create wait for the first one', async (store, hold) => {
    await create(store, 'alice', [plant(1n)])
    const release = hold()
    let answers = 0
    const plants = [plant(2n, 'a'), plant(3n, 'b'), plant(2n, 'a'), plant(2n, 'c')]
    const creates = plants.map((each) => store.create('alice', each).finally(() => answers++))
    for (let i = 0; i < 5; i++) {
      await sleep(2)
      assert.deepEqual(await readAll(store.list('alice', ALL)), [{ name: 'plant 1' }])
      assert.equal(answers, 0)
    }
    release()
    const created = await Promise.all(creates)
    const [, kept, ...others] = await readAll(store.list('alice', ALL))
    // Any of them may be first, if each goes to the storage by itself.
    assert.ok(kept?.name === 'a' || kept?.name === 'c', kept?.name)
    assert.deepEqual(others, [{ name: 'b' }])
    const outcome = ({ id, name }: NewPlant): Created =>
      id === 3n || name === kept.name ? 'stored' : 'conflict'
    assert.deepEqual(created, plants.map(outcome))
  })

  waiting('the cut of a list does not show a create that waits', async (store, hold) => {
    const longName = 'x'.repeat(1000)
    const owners = ['alice', 'bob']
    await create(store, 'alice', [plant(1n), plant(3n)])
    await create(store, 'bob', [plant(1n, longName), plant(3n, longName)])
    const release = hold()
    const creates = owners.flatMap((owner) =>
      [plant(4n, longName), plant(5n)].map((each) => store.create(owner, each)),
    )
    await sleep(20)
    for (const owner of owners) {
      for (const [after, limit, count, next] of [
        [undefined, 1, 1, 1n],
        [undefined, 2, 2, undefined],
        [undefined, 3, 2, undefined],
        [1n, 1, 1, undefined],
      ] as const) {
        const page = await readPage(store.list(owner, { ...ALL, after, limit }))
        assert.equal(page.next, next, `${owner} after ${after}, ${limit} at most`)
        assert.equal(page.plants.length, count)
      }
    }
    release()
    await Promise.all(creates)
    assert.equal((await readPage(store.list('alice', { ...ALL, limit: 2 }))).next, 3n)
  })

  waiting(
    "one create of an owner does not wait for another owner's hundreds",
    async (store, hold) => {
      const [MANY, name] = [THOROUGH ? 400 : 200, 'x'.repeat(20_000)]
      const release = hold()
      let answered = 0
      const creates = Array.from({ length: MANY }, (_, i) =>
        store.create('alice', plant(BigInt(i), name)).then(() => answered++),
      )
      // The first batch, or as many calls of etcd as may run at once, is under way.
      await sleep(20)
      const last = store.create('bob', plant(1n)).then(() => answered)
      release()
      assert.ok((await last) < MANY / 2, `${await last} creates were answered before it`)
      await Promise.all(creates)
      assert.equal((await readAll(store.list('alice', ALL))).length, MANY)
    },
  )

  contract('a close answers creates that wait, refuses later ones', async (under) => {
    const { store } = under
    const waiting = Array.from({ length: 20 }, (_, i) => store.create('alice', plant(BigInt(i))))
    const closed = store.close()
    await assert.rejects(store.create('alice', plant(99n)), StoreUnavailable)
    assert.deepEqual(new Set(await Promise.all(waiting)), new Set(['stored']))
    await closed
    await store.close()
    await assert.rejects(async () => readAll(store.list('alice', ALL)), StoreUnavailable)
    if (!under.reopen) return
    const reopened = await under.reopen()
    assert.equal((await readAll(reopened.list('alice', ALL))).length, 20)
  })

  contract('random creates and lists agree with a plain map', async (under, t) => {
    const { random } = seeded(t)
    // `of` is never empty.
    const pick = <T>(of: readonly T[]): T => of[Math.floor(random() * of.length)] as T
    const model = new Map<string, Map<bigint, Plant>>()
    const ids = [MIN, -3n, -1n, 0n, 1n, 2n, 3n, 2n ** 53n + 1n, MAX]
    let { store } = under
    for (let step = 0; step < (THOROUGH ? 400 : 50); step++) {
      const owner = pick(['alice', 'bob', ''])
      const plants = model.get(owner) ?? new Map<bigint, Plant>()
      model.set(owner, plants)
      if (random() < 0.6) {
        const wanted = plant(pick(ids), pick(['a', 'b']), pick([undefined, '', 'x']))
        const kept = plants.get(wanted.id)
        if (!kept) plants.set(wanted.id, shown(wanted))
        const outcome: Created =
          !kept || (kept.name === wanted.name && kept.tag === wanted.tag) ? 'stored' : 'conflict'
        assert.equal(await store.create(owner, wanted), outcome)
      } else {
        const after = pick([undefined, ...ids])
        const limit = pick([undefined, 0, 1, 2, 5, 100])
        const rest = [...plants]
          .filter(([id]) => after === undefined || id > after)
          .sort(([a], [b]) => (a < b ? -1 : 1))
        const page = limit === undefined ? rest : rest.slice(0, limit)
        const next = page.length > 0 && page.length < rest.length ? page.at(-1)?.[0] : undefined
        assert.deepEqual(await readPage(store.list(owner, { ...ALL, after, limit })), {
          plants: page.map(([, each]) => each),
          next,
        })
      }
      if (step % 50 === 49 && under.reopen) store = await under.reopen()
    }
  })
}
