import type { CompactJWSHeaderParameters, CryptoKey } from 'jose'
import type { Wait } from './verification-queue.ts'

export type KeyLog = (
  level: 'info' | 'error',
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => void

/** Where the keys come from that verify tokens. */
export interface KeySource {
  /** The only algorithms that a token may name. */
  readonly algorithms: readonly string[]
  /**
   * How many signatures may be verified at once. They run on libuv's four threads, as the writes of
   * the journal do, and together should delay one by no more than a few milliseconds.
   */
  readonly atOnce: number
  /**
   * Another number whenever the keys are not the same any more: a token verified before must be
   * verified again.
   */
  readonly generation: number
  /**
   * The one key that fits a token's header, which is not verified yet. Where it must be fetched
   * first, `wait` waits for that.
   * @throws JOSEError when there is none, or more than one (as a rejection, like the next).
   * @throws HttpError keysUnavailable when no keys are at hand.
   */
  key(header: CompactJWSHeaderParameters, wait: Wait): Promise<CryptoKey>
  /** Why no token can be verified at the moment, in a few words; undefined while they can. */
  unavailableReason(): string | undefined
  /** Of a source that fetches: how that went. */
  readonly fetches?: KeyFetches
  /** Begins what goes on in the background; a source without it has nothing to begin. */
  start?(): void
  close(): void
}

export interface KeyFetches {
  readonly succeeded: number
  readonly failed: number
  /** How long ago the set at hand was last fetched; undefined where there is none. */
  readonly ageMs: number | undefined
}

/** Milliseconds. Tests shrink them; the service has no reason to. */
export interface Timing {
  /** How often a key file is read again. */
  readonly poll: number
  /** For one fetch, body included. */
  readonly fetch: number
  /** How often a remote set is fetched again in the background. */
  readonly refresh: number
  /**
   * A request makes no fetch sooner than this after the last attempt began, whatever became of it.
   */
  readonly cooldown: number
  /**
   * First pause of the background without a usable set; each further one is twice as long, up to
   * the cooldown.
   */
  readonly retry: number
  /** How long a remote set is used after it was last fetched. */
  readonly usable: number
}

export const TIMING: Timing = {
  poll: 2_000,
  fetch: 5_000,
  refresh: 10 * 60_000,
  cooldown: 30_000,
  retry: 1_000,
  usable: 60 * 60_000,
}

/** Bytes of a key set or discovery document; a set of 100 keys has about 50,000. */
export const MAX_KEY_SET_BYTES = 1024 * 1024
