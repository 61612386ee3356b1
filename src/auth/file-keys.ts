import type { CompactJWSHeaderParameters, CryptoKey } from 'jose'
import { ConfigError, reasonOf } from '../errors.ts'
import { readRegularFile } from '../regular-file.ts'
import { type KeySet, PUBLIC_ALGORITHMS, readKeySet } from './key-set.ts'
import { type KeyLog, type KeySource, MAX_KEY_SET_BYTES, type Timing } from './key-source.ts'

/** The bytes of a file, or why it cannot be read. */
type Content = Buffer | string

/**
 * The keys of a JWKS file. The file is read again every few seconds and compared: a mounted volume
 * swaps symbolic links, which some watchers do not see. A local, small file is read synchronously.
 */
export class FileKeys implements KeySource {
  readonly algorithms = PUBLIC_ALGORITHMS
  readonly #path: string
  readonly #log: KeyLog
  readonly #timing: Timing
  #set: KeySet
  /** Good or broken: a broken version is logged once. */
  #lastContent: Content
  #generation = 0
  #isStale = false
  #timer: NodeJS.Timeout | undefined

  /** @throws ConfigError if the file cannot be read, or one of its keys is rejected. */
  constructor(path: string, log: KeyLog, timing: Timing) {
    this.#path = path
    this.#log = log
    this.#timing = timing
    this.#lastContent = readContent(path)
    this.#set = parseContent(path, this.#lastContent)
  }

  get atOnce(): number {
    return this.#set.atOnce
  }

  get generation(): number {
    return this.#generation
  }

  get isStale(): boolean {
    return this.#isStale
  }

  key(header: CompactJWSHeaderParameters): Promise<CryptoKey> {
    return this.#set.find(header)
  }

  unavailableReason(): undefined {
    return undefined
  }

  start(): void {
    this.#timer ??= setInterval(() => this.#poll(), this.#timing.poll).unref()
  }

  close(): void {
    clearInterval(this.#timer)
  }

  #poll(): void {
    const content = readContent(this.#path)
    if (Buffer.from(content).equals(Buffer.from(this.#lastContent))) return
    this.#lastContent = content
    try {
      const set = parseContent(this.#path, content)
      if (set.text !== this.#set.text) this.#generation++
      this.#set = set
      this.#isStale = false
      this.#log('info', 'key file read', { path: this.#path, keys: set.size })
    } catch (error) {
      this.#isStale = true
      const reason = reasonOf(error)
      this.#log('error', 'key file is broken, its earlier keys stay in use', { path: this.#path, reason })
    }
  }
}

function readContent(path: string): Content {
  try {
    return readRegularFile(path, MAX_KEY_SET_BYTES)
  } catch (error) {
    return `cannot be read: ${reasonOf(error)}`
  }
}

/**
 * One rejected key refuses the whole file: its author can mend it, unlike the reader of a remote
 * key set.
 * @throws ConfigError
 */
function parseContent(path: string, content: Content): KeySet {
  if (typeof content === 'string') throw new ConfigError([content])
  const set = parseBytes(path, content)
  const noKey = set.size === 0 ? ['holds no key that can verify a token'] : []
  const problems = set.rejectedKeys.length > 0 ? set.rejectedKeys : noKey
  if (problems.length > 0) throw new ConfigError(problems.map((problem) => `${path}: ${problem}`))
  return set
}

function parseBytes(path: string, bytes: Buffer): KeySet {
  try {
    return readKeySet(bytes)
  } catch (error) {
    throw new ConfigError([`${path}: ${reasonOf(error)}`])
  }
}
