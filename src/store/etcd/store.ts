/** Plants in an etcd cluster. */
import { reasonOf } from '../../errors.ts'
import type { Log } from '../../telemetry/log.ts'
import type { NewPlant } from '../../plants/plant.ts'
import type { Created, PlantList, PlantStore, RangeOf } from '../../plants/store.ts'
import { PlantTooLarge, StoreFull, StoreUnavailable } from '../../plants/store.ts'
import { type ClientOptions, EtcdClient, type Place } from './client.ts'
import { createFailureLog } from './failure-log.ts'
import { FirstPages } from './first-pages.ts'
import { DENIED, EtcdRefusal, isRefusal } from './grpc.ts'
import { type Create, CreateGroups, isShort } from './groups.ts'
import { chunksOf, openList, type Source } from './list.ts'
import { binary } from './protobuf.ts'
import { Slots } from './slots.ts'
import { outOfDate } from './tls.ts'
import * as wire from './wire.ts'

export interface EtcdConfig extends ClientOptions {
  /** What the keys of all plants begin with; ends in "/". */
  readonly prefix: string
}

const PROBE_EVERY_MS = 1000
const LOGIN_REFUSED = /authentication failed|user name is empty/
const USER = 'PLANTS_ETCD_USERNAME and PLANTS_ETCD_PASSWORD_FILE, or the option etcdUsername'
const NO_SPACE = /database space exceeded/
/** Up to half a MiB above etcd's --max-request-bytes, and above that. */
const TOO_LARGE = /request is too large|message larger than max/

/**
 * Plants in an etcd cluster, which any number of instances share. A create is one transaction,
 * alone or with others. A list is read page by page, with linearizable reads. Nothing is cached.
 */
export class EtcdStore implements PlantStore {
  readonly #client: EtcdClient
  readonly #config: EtcdConfig
  readonly #log: Log
  readonly #logFailure: ReturnType<typeof createFailureLog>
  readonly #groups = new CreateGroups((creates) => this.#createAll(creates))
  /** For lists, and for creates that are not short. */
  readonly #longCalls = new Slots()
  readonly #firstPages: FirstPages
  /**
   * For short creates that run alone. An owner's lists must not delay them: until one has run, its
   * owner is not set apart. Groups need no slot: at most eight run.
   */
  readonly #shortCalls = new Slots()
  /** Running creates, for `close`. */
  readonly #creates = new Set<Promise<Created>>()
  #unavailableReason: string | undefined
  #isFull = false
  #probeTimer: NodeJS.Timeout | undefined
  #closed: Promise<void> | undefined

  private constructor(config: EtcdConfig, log: Log) {
    this.#client = new EtcdClient(config)
    this.#firstPages = new FirstPages(this.#client, this.#longCalls)
    this.#config = config
    this.#log = log
    this.#logFailure = createFailureLog(log)
  }

  /** Resolves after the first probe. If etcd does not answer, the store is open but unavailable. */
  static async open(config: EtcdConfig, log: Log): Promise<EtcdStore> {
    const store = new EtcdStore(config, log)
    await store.#probe()
    return store
  }

  create(owner: string, plant: NewPlant): Promise<Created> {
    const created: Promise<Created> = this.#create(owner, plant)
      .catch((error: unknown) => this.#fail('a plant could not be kept', error))
      .finally(() => this.#creates.delete(created))
    this.#creates.add(created)
    return this.#client.inTime(created)
  }

  /** Always promises: HTTP caches only chunks returned at once, and could not invalidate these. */
  list(owner: string, { after, limit }: RangeOf<'after' | 'limit'>): PlantList {
    this.#refuseIfClosed()
    const range = wire.plantRange(this.#config.prefix, owner, after)
    const place = { slots: this.#longCalls, owner }
    const source: Source = {
      readFirst: (read, alone) =>
        this.#client.inTime(this.#firstPages.read({ ...read, owner }, alone)),
      call: (request) => this.#client.call(place, request),
    }
    const fail = (error: unknown): never => this.#fail('plants could not be read', error)
    return chunksOf(() => openList(source, range, limit ?? Infinity, fail).catch(fail))
  }

  unavailableReason(): string | undefined {
    return this.#unavailableReason
  }

  /** Waits for creates, which end within the time of a call. Ends lists, which may take longer. */
  close(): Promise<void> {
    clearTimeout(this.#probeTimer)
    return (this.#closed ??= Promise.allSettled(this.#creates).then(() => this.#client.close()))
  }

  async #create(owner: string, plant: NewPlant): Promise<Created> {
    this.#refuseIfClosed()
    const key = wire.plantKey(this.#config.prefix, owner, plant.id)
    const create = { owner, key, plant, since: performance.now() }
    if (!isShort(create)) return this.#createAlone(create, { slots: this.#longCalls, owner })
    const created = await this.#groups.create(create)
    return created ?? this.#createAlone(create, { slots: this.#shortCalls, owner })
  }

  /** One transaction puts all plants if all keys are free. Undefined if each must go alone. */
  async #createAll(creates: readonly Create[]): Promise<Created | undefined> {
    const [first] = creates
    if (first && creates.length === 1) return this.#createAlone(first)
    try {
      return (await this.#put(creates)) ? 'stored' : undefined
    } catch (error) {
      // One plant may be the cause. But an attempt that was not answered may still put all.
      if (error instanceof EtcdRefusal && error.isFirstAttempt) return undefined
      throw error
    }
  }

  /** One transaction puts the plant if its key is free. If not, a second one compares values. */
  async #createAlone(create: Create, place?: Place): Promise<Created> {
    const { owner, key, plant, since } = create
    try {
      if (await this.#put([create], place)) return 'stored'
    } catch (error) {
      if (isRefusal(error, TOO_LARGE) && error.isFirstAttempt) throw new PlantTooLarge()
      if (!isRefusal(error, NO_SPACE)) throw error
      this.#setFull(true)
      // A full cluster refuses a put before it looks for the key.
      const answer = await this.#client.call(place, () => wire.keyRequest(key), since)
      const [entry] = wire.readPage(answer).entries
      if (entry) return entry.value === wire.plantValue(plant) ? 'stored' : 'conflict'
      // If an earlier attempt was not answered, it may still find room.
      throw error.isFirstAttempt ? new StoreFull() : error
    }
    this.#groups.setApart(owner)
    const request = () => wire.compareRequest(key, plant)
    const { succeeded, count } = await this.#transact(request, since, place)
    if (count === 0) throw new Error('etcd neither put a plant nor has one')
    return succeeded ? 'stored' : 'conflict'
  }

  /** False if a key exists: then nothing is put. */
  async #put(creates: readonly Create[], place?: Place): Promise<boolean> {
    // The youngest create decides how long the call may take. `create` answers the others in time.
    const since = Math.max(...creates.map((create) => create.since))
    const { succeeded } = await this.#transact(() => wire.putRequest(creates), since, place)
    if (succeeded) this.#setFull(false)
    return succeeded
  }

  async #transact(request: () => wire.EtcdRequest, since: number, place?: Place) {
    return wire.readOutcome(await this.#client.call(place, request, since))
  }

  #refuseIfClosed(): void {
    if (this.#closed) throw new StoreUnavailable('the store is closed')
  }

  #setFull(isFull: boolean): void {
    if (this.#isFull === isFull) return
    this.#isFull = isFull
    if (isFull) this.#log.error('etcd is full: new plants are refused, reading goes on')
    else this.#log.info('etcd has space again')
  }

  /** Sets the unavailable reason, and schedules the next probe. Never rejects. */
  async #probe(): Promise<void> {
    const reason = await this.#reasonNow()
    if (reason !== this.#unavailableReason) {
      this.#unavailableReason = reason
      if (reason === undefined) this.#log.info('etcd is ready again')
      else this.#log.error('etcd is not ready', { reason })
    }
    if (this.#closed) return
    this.#probeTimer = setTimeout(() => void this.#probe(), PROBE_EVERY_MS).unref()
  }

  /** etcd's own /health is not enough: it fails in a full cluster, and ignores the rights. */
  async #reasonNow(): Promise<string | undefined> {
    const key = binary(this.#config.prefix)
    // etcd before 3.4.20 and 3.5.7 refuses a delete too if the quota is used up.
    const readIfFull = async (error: unknown): Promise<void> => {
      if (!isRefusal(error, NO_SPACE)) throw error
      wire.readPage(await this.#client.probe(wire.keyRequest(key)))
    }
    const probe = async (): Promise<void> => {
      wire.readOutcome(await this.#client.probe(wire.probeRequest(key)))
    }
    try {
      await probe().catch(readIfFull)
      return undefined
    } catch (error) {
      const reasons = [this.#reasonOf(error), outOfDate(this.#config.tls)]
      return reasons.filter((reason) => reason !== undefined).join('; ')
    }
  }

  /** @throws PlantTooLarge or StoreFull as they are; for any other error, StoreUnavailable. */
  #fail(message: string, error: unknown): never {
    if (error instanceof PlantTooLarge || error instanceof StoreFull) throw error
    const reason = this.#reasonOf(error)
    if (!this.#closed) this.#logFailure(message, reason)
    throw error instanceof StoreUnavailable ? error : new StoreUnavailable(reason, { cause: error })
  }

  #reasonOf(error: unknown): string {
    const reason = reasonOf(error)
    if (isRefusal(error, LOGIN_REFUSED)) return `${reason}; look at ${USER}`
    if (!isRefusal(error, DENIED)) return reason
    return `${reason}; the user of etcd needs readwrite on ${this.#config.prefix}`
  }
}
