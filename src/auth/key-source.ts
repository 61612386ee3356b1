/** What the verifier knows of its keys, wherever they come from. */
import type { CompactJWSHeaderParameters, CryptoKey, FlattenedJWSInput } from 'jose'
import type { HttpError } from '../errors.ts'
import type { TokenCache } from './token-cache.ts'

/** Keys that verify tokens. They never change: other keys are another object. */
export interface Keys {
  /** Equal texts mean equal keys. Never shown: it may hold secrets. */
  readonly text: string
  /** How many keys are usable. */
  readonly size: number
  /** Their `kid`s. Undefined for secrets, which have none. */
  readonly kids?: ReadonlySet<unknown>
  /** Files of secrets that are no text: a final line end is part of such a secret. */
  readonly binary?: readonly string[]
  /** The only algorithms that a token may name. */
  readonly algorithms: readonly string[]
  /** The tokens that these keys have verified. It goes with them. */
  readonly verified: TokenCache
  /**
   * Finds the one key that fits a token, which is not verified yet: it may be another's.
   * @throws JOSEError or HttpError (as a rejection) if no key fits, or more than one.
   */
  find(header: CompactJWSHeaderParameters, jws: FlattenedJWSInput): Promise<CryptoKey>
}

export interface KeySource {
  /** The latest usable keys. */
  readonly keys: Keys | undefined
  /** If there are no keys, the error for a token. Its `cause` says why in a few words. */
  readonly unavailable?: HttpError | undefined
  /**
   * Fetches keys if there are none, or none has this kid, which is a string. The promise never
   * rejects; undefined if there is nothing to wait for. Only a source that fetches keys has it.
   */
  fetchFor?(kid: unknown): Promise<void> | undefined
  /**
   * True if the last version of the keys could not be read or used, so that earlier keys stay in
   * use, if there are any. Undefined for a secret that is no file.
   */
  readonly isStale?: boolean
  /** Time since the last fetch that succeeded; undefined without a usable set that was fetched. */
  readonly ageSeconds?: number | undefined
  /** Begins the work in the background, if there is any. */
  start?(): void
  close?(): void
}

/** Milliseconds. Only tests change them. */
export const TIMING = {
  /** Between two readings of a file of keys. */
  poll: 2_000,
  /** For one fetch, body included. */
  fetch: 5_000,
  /** Between two fetches of a remote key set in the background. */
  refresh: 10 * 60_000,
  /** Requests may fetch keys three times in a row, and then once in this time. */
  refill: 30_000,
  /** The first delay of the background without a usable set; it doubles up to `refill`. */
  retry: 1_000,
  /** How long a remote key set is used after its last fetch. */
  usable: 60 * 60_000,
}

export type Timing = Readonly<typeof TIMING>

/** Of a key set or a discovery document. A set of 100 keys has about 50,000. */
export const MAX_KEY_SET_BYTES = 1024 * 1024
