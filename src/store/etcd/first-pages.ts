/** Reads the first pages of lists: those of many owners in one call of etcd. */
import type { EtcdClient } from './client.ts'
import type { Call } from './list.ts'
import type { Slots } from './slots.ts'
import * as wire from './wire.ts'

/** With more reads in a group, each is only a little cheaper. */
const GROUP_MAX = 16
/** Of a page in a group. A group has 512 KiB at most, which is what one tick may read. */
const CHEAP_BYTES = 32 * 1024
/** Of the range of a page in a group: etcd counts it, in 0.1 ms for 1,000 plants. */
const CHEAP_COUNT = 10_000
/** How long an owner is read alone after a page that was not cheap, or was not read. */
const ALONE_MS = 60_000

interface FirstRead extends wire.Read {
  readonly owner: string
}
interface Waiting {
  readonly read: FirstRead
  readonly resolve: (page: Promise<wire.Page | undefined>) => void
}

/**
 * Reads that get their slot in the same tick are a group. etcd reads one range after the other, so
 * one read delays its group, and may spoil it. So an owner has one read in a group at a time, and
 * none for a minute after one that was not cheap.
 */
export class FirstPages {
  readonly #client: EtcdClient
  readonly #slots: Slots
  /** Owners that may not have a read in a group now. */
  readonly #aloneOwners = new Set<string>()
  #waiting: Waiting[] = []

  constructor(client: EtcdClient, slots: Slots) {
    this.#client = client
    this.#slots = slots
  }

  /** @param readAlone reads the page with calls of its own. @throws what it throws */
  async read(read: FirstRead, readAlone: (call: Call) => Promise<wire.Page>): Promise<wire.Page> {
    const since = performance.now()
    const { owner } = read
    const alone = () => readAlone((request) => this.#client.call(undefined, request, since))
    await this.#slots.enter(owner, this.#client.timing.call)
    try {
      return await (this.#aloneOwners.has(owner) ? alone() : this.#readInGroup(read, alone))
    } finally {
      this.#slots.leave()
    }
  }

  async #readInGroup(read: FirstRead, alone: () => Promise<wire.Page>): Promise<wire.Page> {
    const { owner, limit } = read
    let aloneMs = ALONE_MS
    this.#aloneOwners.add(owner)
    try {
      const page = (await this.#readWithOthers(read)) ?? (await alone())
      if (isCheap(page, limit)) aloneMs = 0
      return page
    } finally {
      if (aloneMs === 0) this.#aloneOwners.delete(owner)
      else setTimeout(() => this.#aloneOwners.delete(owner), aloneMs).unref()
    }
  }

  /** Undefined if the group failed. */
  #readWithOthers(read: FirstRead): Promise<wire.Page | undefined> {
    return new Promise((resolve) => {
      this.#waiting.push({ read, resolve })
      if (this.#waiting.length === 1) setImmediate(() => this.#start())
    })
  }

  #start(): void {
    const waiting = this.#waiting.splice(0)
    while (waiting.length > 0) {
      const group = waiting.splice(0, GROUP_MAX)
      const pages = this.#readGroup(group.map(({ read }) => read))
      group.forEach(({ resolve }, i) => resolve(pages.then((all) => all[i])))
    }
  }

  /** One transaction reads all pages, in the time of an attempt. None if it fails. */
  async #readGroup(reads: readonly FirstRead[]): Promise<readonly wire.Page[]> {
    const maxBytes = reads.length * CHEAP_BYTES
    const request = () => ({ ...wire.readsRequest(reads), maxBytes })
    try {
      return wire.readPages(await this.#client.callBriefly(request), reads.length)
    } catch {
      // One of them may be the cause. Each is read alone, and reports why that fails.
      return []
    }
  }
}

/** False also for a page that was too long, and was read again with fewer plants. */
function isCheap({ bytes, count, entries, more }: wire.Page, limit: number): boolean {
  const isWhole = entries.length === limit || !more
  return isWhole && bytes <= CHEAP_BYTES && count <= CHEAP_COUNT
}
