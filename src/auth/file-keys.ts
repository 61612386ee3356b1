import type { CompactJWSHeaderParameters, CryptoKey } from 'jose'
import { ConfigError, reasonOf } from '../errors.ts'
import { type KeySet, PUBLIC_ALGORITHMS, readKeySet } from './key-set.ts'
import { readRegularFile } from '../regular-file.ts'
import { type KeyLog, type KeySource, MAX_KEY_SET_BYTES, type Timing } from './key-source.ts'

/** What is at a path: the bytes of a file, or why there are none. */
type Content = Buffer | string

/**
 * The keys of PLANTS_JWKS_FILE. The file is read and compared again and again rather than watched:
 * a mounted volume swaps symbolic links, which not every watcher sees. Reading is synchronous: the
 * file is local and small.
 */
export class FileKeys implements KeySource {
  readonly algorithms = PUBLIC_ALGORITHMS
  readonly #path: string
  readonly #log: KeyLog
  readonly #timing: Timing
  #set: KeySet
  /** What was last found, good or not, so that a broken version is complained of once. */
  #seen: Content
  #generation = 0
  #timer: NodeJS.Timeout | undefined

  /** @throws ConfigError when the file is not wholly in order. */
  constructor(path: string, log: KeyLog, timing: Timing) {
    this.#path = path
    this.#log = log
    this.#timing = timing
    this.#seen = readContent(path)
    this.#set = readGoodSet(path, this.#seen)
  }

  get atOnce(): number {
    return this.#set.atOnce
  }

  get generation(): number {
    return this.#generation
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
    if (Buffer.from(content).equals(Buffer.from(this.#seen))) return
    this.#seen = content
    try {
      const set = readGoodSet(this.#path, content)
      if (set.text !== this.#set.text) this.#generation++
      this.#set = set
      this.#log('info', 'key file read', { path: this.#path, keys: set.size })
    } catch (error) {
      this.#log('error', 'key file is broken, its earlier keys stay in use', {
        reason: reasonOf(error),
      })
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
 * Unlike a remote set, a file is in its reader's own hands: one bad key makes it all a mistake to
 * be told of.
 */
function readGoodSet(path: string, content: Content): KeySet {
  const refused = (problems: readonly string[]): ConfigError =>
    new ConfigError(problems.map((problem) => `${path}: ${problem}`))
  if (typeof content === 'string') throw new ConfigError([content])
  let set: KeySet
  try {
    set = readKeySet(content)
  } catch (error) {
    throw refused([reasonOf(error)])
  }
  if (set.flaws.length > 0) throw refused(set.flaws)
  if (set.size === 0) throw refused(['holds no key that can verify a token'])
  return set
}
