import type { NewPlant, Plant } from '../../plants/plant.ts'
import { type Created, type PlantList, type PlantRange, type PlantStore, PlantTooLarge, StoreFull, StoreUnavailable } from '../../plants/store.ts'
import { type ClientOptions, EtcdClient, EtcdRefusal, reasonOf } from './client.ts'
import { EMPTY, openList, RANGE_PATH } from './listing.ts'
import { createMessage, keyMessage, plantKey, plantRange, readPage, readPlant, readRival } from './wire.ts'

export interface EtcdConfig extends ClientOptions {
  /** What the keys of all plants begin with; ends in "/". */
  readonly prefix: string
}

export type EtcdLog = (level: 'info' | 'error', message: string, fields: Readonly<Record<string, unknown>>) => void

const TXN_PATH = '/v3/kv/txn'
const INT64_MAX = 2n ** 63n - 1n
/** How often it is seen whether etcd answers. */
const PROBE_EVERY_MS = 1000
const NO_SPACE = /database space exceeded/
/** Above etcd's --max-request-bytes, and above half a MiB more. */
const TOO_LARGE = /request is too large|message larger than max/

/**
 * Plants in an etcd cluster, which any number of instances share. A create is one transaction, a list is read page by page
 * with linearizable reads, and the process keeps nothing.
 */
export class EtcdStore implements PlantStore {
  readonly #client: EtcdClient
  readonly #prefix: string
  readonly #log: EtcdLog
  readonly #underWay = new Set<Promise<unknown>>()
  #trouble: string | undefined
  #full = false
  #timer: NodeJS.Timeout | undefined
  #closed: Promise<void> | undefined

  private constructor(config: EtcdConfig, log: EtcdLog) {
    this.#client = new EtcdClient(config)
    this.#prefix = config.prefix
    this.#log = log
  }

  /** Resolves once it is known whether etcd answers; where it does not, the store says so and waits for it. */
  static async open(config: EtcdConfig, log: EtcdLog): Promise<EtcdStore> {
    const store = new EtcdStore(config, log)
    await store.#probe()
    return store
  }

  create(owner: string, plant: NewPlant): Promise<Created> {
    return this.#keep(this.#create(plantKey(this.#prefix, owner, plant.id), plant))
  }

  /** Never at once: what HTTP remembers of a list that came at once, another instance would not know to forget. */
  async list(owner: string, { after, limit }: PlantRange): Promise<PlantList> {
    this.#refuseClosed()
    // To etcd a limit of 0 means all.
    if (limit === 0 || after === INT64_MAX) return EMPTY
    return this.#keep(openList(this.#client, plantRange(this.#prefix, owner, after), limit)).catch(unavailable)
  }

  trouble(): string | undefined {
    return this.#trouble
  }

  close(): Promise<void> {
    return (this.#closed ??= this.#close())
  }

  async #close(): Promise<void> {
    clearTimeout(this.#timer)
    await Promise.allSettled(this.#underWay)
    this.#client.close()
  }

  async #create(key: Buffer, plant: NewPlant): Promise<Created> {
    this.#refuseClosed()
    try {
      const { body } = await this.#client.call(TXN_PATH, createMessage(key, plant))
      const rival = readRival(body)
      if (!rival) this.#setFull(false)
      return !rival || same(rival, plant) ? 'stored' : 'conflict'
    } catch (error) {
      if (!(error instanceof EtcdRefusal)) return unavailable(error)
      if (error.first && TOO_LARGE.test(error.message)) throw new PlantTooLarge()
      if (!NO_SPACE.test(error.message)) return unavailable(error)
      this.#setFull(true)
      return this.#find(key, plant, error)
    }
  }

  /** A full cluster refuses a create before it looks whether the plant is there already. */
  async #find(key: Buffer, plant: NewPlant, refusal: EtcdRefusal): Promise<Created> {
    const page = await this.#client.call(RANGE_PATH, keyMessage(key)).then(({ body }) => readPage(body), unavailable)
    const [entry] = page.entries
    if (entry) return same(readPlant(entry), plant) ? 'stored' : 'conflict'
    // An attempt that was not answered may find room yet.
    return refusal.first ? Promise.reject(new StoreFull()) : unavailable(refusal)
  }

  #refuseClosed(): void {
    if (this.#closed) throw new StoreUnavailable('the store is closed')
  }

  #keep<T>(work: Promise<T>): Promise<T> {
    const kept = work.finally(() => this.#underWay.delete(kept))
    this.#underWay.add(kept)
    return kept
  }

  #setFull(full: boolean): void {
    if (this.#full === full) return
    this.#full = full
    if (full) this.#log('error', 'etcd has no space left: no new plant can be kept, and reading goes on', {})
    else this.#log('info', 'etcd has space again', {})
  }

  /**
   * One linearizable read, which needs a majority and the rights to read: etcd's own /health can be good without. Never rejects.
   */
  async #probe(): Promise<void> {
    const before = this.#trouble
    try {
      readPage((await this.#client.call(RANGE_PATH, keyMessage(Buffer.from(this.#prefix)), { timeoutMs: this.#client.timing.probe })).body)
      this.#trouble = undefined
      if (before !== undefined) this.#log('info', 'etcd answers again', {})
    } catch (error) {
      this.#trouble = reasonOf(error)
      if (before === undefined) this.#log('error', 'etcd does not answer: plants can be neither kept nor read', { reason: this.#trouble })
    }
    if (!this.#closed) this.#timer = setTimeout(() => void this.#probe(), PROBE_EVERY_MS).unref()
  }
}

function same(a: Plant, b: Plant): boolean {
  return a.name === b.name && a.tag === b.tag
}

/** @throws StoreUnavailable for whatever it was. */
function unavailable(error: unknown): never {
  throw error instanceof StoreUnavailable ? error : new StoreUnavailable(reasonOf(error), { cause: error })
}
