/** Reads the first pages of lists: those of many owners in one call of etcd. */
import type { EtcdClient } from './client.ts'
import { Groups } from './groups.ts'
import * as wire from './wire.ts'

/** With more reads in a group, each is only a little cheaper. */
const READS_MAX = 16
/** As many of these as a group has reads, so 512 KiB, are what one tick may read. */
const SHORT_BYTES = 32 * 1024
/** etcd counts the whole range, in 0.1 ms for 1,000 plants, and reads the ranges in turn. */
const COUNT_MAX = 10_000
/** How long an owner whose page was not cheap is read alone. */
const ALONE_MS = 60_000

interface FirstRead extends wire.Read {
  readonly owner: string
}

/**
 * An owner has one read in a group at most, so its further lists do not delay those of others. A
 * page that delays or spoils a group is the last of its owner in any group for a minute.
 */
export class FirstPages {
  readonly #client: EtcdClient
  readonly #groups = new Groups<FirstRead, wire.Page>(READS_MAX, (all) => this.#readGroup(all))
  /** Owners whose lists are read alone: one is being read, or was not cheap in the last minute. */
  readonly #busy = new Set<string>()

  constructor(client: EtcdClient) {
    this.#client = client
  }

  /** @param alone reads the page in a call of its own. @throws what that throws */
  async read(read: FirstRead, alone: () => Promise<wire.Page>): Promise<wire.Page> {
    const { owner, limit } = read
    if (this.#busy.has(owner)) return alone()
    this.#busy.add(owner)
    let aloneMs = 0
    try {
      const page = (await this.#readWithOthers(read)) ?? (await alone())
      if (!isCheap(page, limit)) aloneMs = ALONE_MS
      return page
    } finally {
      if (aloneMs === 0) this.#busy.delete(owner)
      else setTimeout(() => this.#busy.delete(owner), aloneMs).unref()
    }
  }

  /** Undefined if the read got no place in a group, or the group no answer, in time. */
  #readWithOthers(read: FirstRead): Promise<wire.Page | undefined> {
    const { attempt } = this.#client.timing
    return this.#client.inTime(this.#groups.add(read), attempt).catch(() => undefined)
  }

  /** One transaction reads all pages. If it fails, one of them may be the cause. */
  async #readGroup(reads: readonly FirstRead[]): Promise<readonly (wire.Page | undefined)[]> {
    const maxBytes = reads.length * SHORT_BYTES
    const request = () => ({ ...wire.readsRequest(reads), maxBytes })
    const { attempt } = this.#client.timing
    try {
      const answer = await this.#client.call(undefined, request, performance.now(), attempt)
      return wire.readPages(answer, reads.length)
    } catch {
      return reads.map(() => undefined)
    }
  }
}

/** False also for a page that was too long, and was read again with fewer plants. */
function isCheap({ bytes, count, entries, more }: wire.Page, limit: number): boolean {
  const isWhole = entries.length === limit || !more
  return isWhole && bytes <= SHORT_BYTES && count <= COUNT_MAX
}
