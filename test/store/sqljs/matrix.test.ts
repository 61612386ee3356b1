import assert from 'node:assert/strict'
import { basename } from 'node:path'
import { test, type TestContext } from 'node:test'
import { checkDirectory } from '../../../dist/store/sqljs/inspect.js'
import { StoreCorrupt } from '../../../dist/store/sqljs/disk/journal-format.js'
import { SNAPSHOT } from '../../../dist/store/sqljs/disk/snapshot.js'
import type { SqljsStore } from '../../../dist/store/sqljs/sqljs-store.js'
import { plant } from '../../contract/store.contract.ts'
import { seeded } from '../../support/random.ts'
import { THOROUGH } from '../../support/scale.ts'
import { directoryOf, exportOf, filesLeftByKill, filesOf, IN_MEMORY } from './fixtures.ts'
import { list, openedOver, openStore } from './fixtures.ts'

/*
 * Whole files, each sound by itself, that were put together: two stores at three moments each, a
 * fork by copy, a fork by export, and exports of all of them. Every snapshot meets every set of
 * journals. Nothing that was acknowledged may vanish in silence, but what SECURITY.md names.
 */

type Contents = ReadonlyMap<string, Buffer>

/** A directory as it was at a moment, with the names of its plants, and those of its snapshot. */
interface Moment {
  readonly name: string
  readonly files: Contents
  readonly names: readonly string[]
  readonly inSnapshot: readonly string[]
}

/** A snapshot or an export, and the plants that are in it. */
interface Source extends Moment {
  readonly isExport: boolean
}

/** The share of the pairs in the short form. */
const SHARE = 0.02
const SILENT = 'starts without what a fork went on with'

/** Directories of a store at several moments, and the exports of it. */
class History {
  readonly moments: Moment[] = []
  readonly exports: Source[] = []
  readonly #name: string
  readonly #directory: string
  readonly #names: string[]
  #inSnapshot: readonly string[]
  #store: SqljsStore | undefined
  #id = 0n

  private constructor(
    name: string,
    directory: string,
    names: readonly string[],
    inSnapshot: readonly string[],
  ) {
    this.#name = name
    this.#directory = directory
    this.#names = [...names]
    this.#inSnapshot = inSnapshot
    this.#id = BigInt(names.length)
  }

  static async begin(name: string, from?: Moment): Promise<History> {
    const { files = new Map(), names = [], inSnapshot = [] } = from ?? {}
    const history = new History(name, await directoryOf(files), names, inSnapshot)
    await history.#open()
    return history
  }

  async #open(): Promise<void> {
    this.#store = await openStore(this.#directory, { compactBytes: 2 ** 20 })
  }

  /** Two more plants, each a write of its own, and then a kill. */
  async goOn(): Promise<Moment> {
    for (let i = 0; i < 2; i++) {
      const created = plant(++this.#id, `${this.#name} ${this.#id}`)
      assert.equal(await this.#store?.create('alice', created), 'stored')
      this.#names.push(created.name)
    }
    return this.#record(`${this.#name}${this.moments.length + 1}`)
  }

  /** A clean stop, after which the snapshot has everything, and a start. */
  async restart(): Promise<Moment> {
    await this.#store?.close()
    this.#inSnapshot = [...this.#names]
    const stopped = await this.#record(`${this.#name}${this.moments.length}, stopped`)
    await this.#open()
    return stopped
  }

  async close(): Promise<void> {
    await this.#store?.close()
  }

  async #record(name: string): Promise<Moment> {
    const [files, names] = [filesLeftByKill(this.#directory), [...this.#names]]
    const moment = { name, files, names, inSnapshot: this.#inSnapshot }
    const exported = { files: await exportOf(this.#directory), names, inSnapshot: names }
    this.exports.push({ ...exported, name: `export of ${name}`, isExport: true })
    this.moments.push(moment)
    return moment
  }
}

async function namesIn(store: SqljsStore): Promise<string[]> {
  return (await list(store)).map(({ name }) => name)
}

/**
 * What a start makes of a directory, and the plants that it finds. `check`, and often `export`,
 * must say the same.
 */
async function outcomeOf(files: Contents, isExported: boolean) {
  const { disk, open } = openedOver(files)
  const messageOf = (error: unknown): string => {
    assert.ok(error instanceof StoreCorrupt, String(error))
    assert.match(error.message, /(plants\.sqlite|journal-\d+\.log) is damaged at byte \d+: /)
    return error.message
  }
  const checked = await checkDirectory(IN_MEMORY, disk).then(() => '', messageOf)
  const exported = isExported ? await exportOf(IN_MEMORY, disk).catch(messageOf) : checked
  assert.equal(typeof exported === 'string' ? exported : '', checked)
  assert.deepEqual(await filesOf(IN_MEMORY, disk), new Map([...files].toSorted(byName)))
  const opened = await open().catch(messageOf)
  if (typeof opened === 'string') {
    assert.equal(opened, checked)
    return { what: 'refused', found: undefined, message: opened }
  }
  assert.equal(checked, '')
  const found = await namesIn(opened)
  assert.equal(await opened.create('alice', plant(1000n, 'new')), 'stored')
  const killed = await filesOf(IN_MEMORY, disk)
  await opened.close()
  for (const again of [openedOver(killed).open, open]) {
    const store = await again()
    assert.deepEqual(await namesIn(store), [...found, 'new'])
    await store.close()
  }
  if (typeof exported !== 'string') {
    const alone = await openedOver(exported).open()
    assert.deepEqual(await namesIn(alone), found)
    await alone.close()
  }
  return { what: 'starts', found, message: '' }
}

const byName = ([a]: readonly [string, Buffer], [b]: readonly [string, Buffer]): number =>
  a < b ? -1 : 1

function part(files: Contents, isSnapshot: boolean): [string, Buffer][] {
  return [...files].filter(([name]) => (name === SNAPSHOT) === isSnapshot)
}

/** Does what a refusal says, in each way that it offers. Returns whether it offers any. */
async function cures(files: Contents, message: string, source: Source, journals?: Moment) {
  const tried: string[] = []
  const startsWith = async (cured: Contents, names: readonly string[], how: string) => {
    const store = await openedOver(cured).open()
    const found = await namesIn(store)
    for (const name of names) assert.ok(found.includes(name), `${how}: ${name} is lost`)
    await store.close()
    tried.push(how)
  }
  const left = new Map(files)
  for (let refusal = message; ; ) {
    const [, itself = ''] = /(\S+) is damaged.* move this file elsewhere$/.exec(refusal) ?? []
    if (!left.delete(basename(itself))) break
    refusal = await openedOver(left).open().then((store) => store.close()).then(() => '', String)
    if (refusal === '') await startsWith(left, source.inSnapshot, 'without some journals')
  }
  // One file after another, and then nothing is missing.
  assert.ok(tried.length > 0 || !/move this file elsewhere$/.test(message), message)
  if (/put the (files back that belong together|missing file back)/.test(message)) {
    await startsWith(source.files, source.names, 'the journals of the snapshot')
    if (journals) await startsWith(journals.files, journals.names, 'the snapshot of the journals')
  }
  return tried.length > 0 || /move all files of the directory elsewhere/.test(message)
}

async function histories(t: TestContext) {
  const a = await History.begin('a')
  const b = await History.begin('b')
  for (const history of [a, b]) await history.goOn()
  for (const history of [a, b]) await history.restart()
  const before = await a.goOn()
  const exported = a.exports.at(-1) ?? assert.fail()
  await b.goOn()
  // Both went on from here, with as many writes, and with more.
  const fork = await History.begin('f', before)
  const restored = await History.begin('r', exported)
  for (const history of [a, b, fork, restored]) await history.goOn()
  for (const history of [a, fork]) await history.restart()
  await fork.goOn()
  const all = [a, b, fork, restored]
  t.after(() => Promise.all(all.map((history) => history.close())))
  return all
}

test('matrix: no pair of sound files loses a plant in silence, but covered forks', async (t) => {
  const { random } = seeded(t)
  const all = await histories(t)
  const moments = all.flatMap((history) => history.moments)
  const sources = [
    ...moments.map((moment) => ({ ...moment, isExport: false })),
    ...all.flatMap((history) => history.exports),
  ]
  const counts = new Map<string, number>()
  let pairs = 0
  for (const source of sources) {
    for (const journals of [undefined, ...moments]) {
      // Each takes 30 ms.
      if (!THOROUGH && random() > SHARE) continue
      const pair = `${source.name} with the journals of ${journals?.name ?? 'none'}`
      const theirs = journals ? part(journals.files, false) : []
      const files = new Map([...part(source.files, true), ...theirs])
      const isExported = THOROUGH || pairs++ % 7 === 0
      const outcome = await outcomeOf(files, isExported)
      const kind = source.isExport ? 'export' : 'snapshot'
      let { what } = outcome
      if (outcome.found) {
        const { found } = outcome
        const known = new Set([...source.inSnapshot, ...(journals?.names ?? [])])
        for (const name of found) assert.ok(known.has(name), `${pair}: ${name} from nowhere`)
        const lost = [...known].filter((name) => !found.includes(name))
        const isFork = lost.length > 0 && isCoveredFork(source, journals)
        assert.ok(lost.length === 0 || isFork, `${pair}: ${lost.join()} are lost`)
        if (isFork) what = SILENT
      } else {
        const isCured = await cures(files, outcome.message, source, journals)
        assert.ok(isCured, `${pair}: ${outcome.message}`)
      }
      counts.set(`${kind}: ${what}`, (counts.get(`${kind}: ${what}`) ?? 0) + 1)
    }
  }
  for (const [what, count] of [...counts].toSorted()) t.diagnostic(`${count} ${what}`)
})

/** Two directories with one id that both went on, and a snapshot of one covers the other's. */
function isCoveredFork(source: Source, journals: Moment | undefined): boolean {
  const letters = [source, journals].map((each) => each?.name.replace('export of ', '')[0])
  // Each plant is a write.
  const isCovered = source.inSnapshot.length > (journals?.names.length ?? 0)
  return letters.includes('a') && letters.includes('f') && isCovered
}
