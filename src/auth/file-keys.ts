/**
 * The keys of a JWKS file. The file is read again every few seconds and compared: a mounted volume
 * swaps symbolic links, which some watchers do not see. A local, small file is read synchronously.
 */
import { readFileSync } from 'node:fs'
import { ConfigError, reasonOf, reasonWithoutPath } from '../errors.ts'
import type { Log } from '../telemetry/log.ts'
import { type KeySet, readKeySet } from './key-set.ts'
import { type KeySource, MAX_KEY_SET_BYTES } from './key-source.ts'

/** @throws ConfigError if the file cannot be read, or one of its keys is rejected. */
export function fileKeys(path: string, pollMs: number): (log: Log) => KeySource {
  /** The last content, or why it could not be read. Each broken version is logged once. */
  let content = readContent(path)
  const keys = parseContent(path, content)
  return (log) => {
    let timer: NodeJS.Timeout | undefined
    const source = {
      keys,
      isStale: false,
      start: () => void (timer ??= setInterval(poll, pollMs).unref()),
      close: () => clearInterval(timer),
    }
    function poll(): void {
      const latest = readContent(path)
      if (Buffer.from(latest).equals(Buffer.from(content))) return
      content = latest
      source.isStale = true
      try {
        const changed = parseContent(path, content)
        if (changed.text !== source.keys.text) source.keys = changed
        source.isStale = false
        log.info('key file read', { path, keys: changed.size })
      } catch (error) {
        const fields = { path, reason: reasonOf(error) }
        log.error('key file is broken, its earlier keys stay in use', fields)
      }
    }
    return source
  }
}

function readContent(path: string): Buffer | string {
  try {
    const bytes = readFileSync(path)
    const tooLong = `cannot be read: ${path} has more than ${MAX_KEY_SET_BYTES} bytes`
    return bytes.length > MAX_KEY_SET_BYTES ? tooLong : bytes
  } catch (error) {
    return `cannot be read: ${reasonWithoutPath(error)}`
  }
}

/**
 * One rejected key refuses the whole file: its author can mend it, unlike the reader of a remote
 * key set.
 * @throws ConfigError
 */
function parseContent(path: string, content: Buffer | string): KeySet {
  if (typeof content === 'string') throw new ConfigError([content])
  let problems: readonly string[] = ['holds no key that can verify a token']
  try {
    const set = readKeySet(content)
    if (set.size > 0 && set.rejectedKeys.length === 0) return set
    if (set.rejectedKeys.length > 0) problems = set.rejectedKeys
  } catch (error) {
    problems = [reasonOf(error)]
  }
  throw new ConfigError(problems.map((problem) => `${path}: ${problem}`))
}
