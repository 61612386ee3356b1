import type { CompactJWSHeaderParameters, CryptoKey } from 'jose'
import type { Wait } from './verification-queue.ts'

/** The keys that verify tokens. */
export interface KeySource {
  /** The only algorithms that a token may name. */
  readonly algorithms: readonly string[]
  /**
   * How many signatures may be verified at once. They share libuv's four threads with the writes of
   * the journal, and should delay a write by no more than a few milliseconds.
   */
  readonly atOnce: number
  /** Changes with the keys: a token that earlier keys verified must be verified again. */
  readonly generation: number
  /**
   * Finds the one key that fits the header of a token, which is not verified yet. If keys must be
   * fetched first, `wait` waits for that.
   * @throws JOSEError (as a rejection) if no key fits, or more than one.
   * @throws HttpError keysUnavailable (as a rejection) if there are no keys.
   */
  key(header: CompactJWSHeaderParameters, wait: Wait): Promise<CryptoKey>
  /** Why no token can be verified now, in a few words; undefined if tokens can be verified. */
  unavailableReason(): string | undefined
  /**
   * True if the last version of the keys could not be read or used, so that earlier keys stay in
   * use, if there are any. Undefined for a secret, which is read once.
   */
  readonly isStale?: boolean
  /** Only of a source that fetches its keys. */
  readonly fetches?: {
    readonly succeeded: number
    readonly failed: number
    /** Since the last fetch that succeeded; undefined if there is no usable key set. */
    readonly ageMs: number | undefined
  }
  /** Begins the work in the background, if there is any. */
  start(): void
  close(): void
}

export type KeyLog = (
  level: 'info' | 'error',
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => void

/** Milliseconds. Only tests change them. */
export const TIMING = {
  /** Between two readings of a key file. */
  poll: 2_000,
  /** For one fetch, body included. */
  fetch: 5_000,
  /** Between two fetches of a remote key set in the background. */
  refresh: 10 * 60_000,
  /** A request fetches keys only this long after the last attempt began, even if that failed. */
  cooldown: 30_000,
  /** The first delay of the background without a usable set; it doubles up to the cooldown. */
  retry: 1_000,
  /** How long a remote key set is used after its last fetch. */
  usable: 60 * 60_000,
}

export type Timing = Readonly<typeof TIMING>

/** Of a key set or a discovery document. A set of 100 keys has about 50,000. */
export const MAX_KEY_SET_BYTES = 1024 * 1024
