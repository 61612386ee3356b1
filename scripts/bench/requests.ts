import { writeCursor } from '../../dist/api/cursor.js'
import { FIRST_POSTED, newPlant, user } from './plants.ts'
import { sign } from './tokens.ts'

/**
 * What a run asks for. `get`: pages of `limit`, the users in turn. `cursor`: the page after a
 * cursor that no run used before. `post`: new plants. `mixed`: every tenth request a POST, the
 * others `get`. `tokens`: `get`, each with a new token.
 */
export type Kind = 'get' | 'cursor' | 'post' | 'mixed' | 'tokens'

export interface Asked {
  readonly kind: Kind
  readonly limit: number
  readonly users: number
  /** Plants that each user was filled with. */
  readonly plants: number
  /**
   * How many requests earlier runs made of the same server: ids, cursors and tokens continue from
   * there.
   */
  readonly offset: number
  /** Whether cursors may come again: for a server without a cache. */
  readonly mayRepeat: boolean
}

const tokens: string[] = []

function head(line: string, token: string): string {
  return `${line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ${token}\r\n`
}

/** The requests of a run, one a call; those that repeat are built once. */
export function requests({
  kind,
  limit,
  users,
  plants,
  offset,
  mayRepeat,
}: Asked): () => string | Buffer {
  if (users === 0) throw new Error('a run without users')
  const tokenOf = (u: number): string => (tokens[u] ??= sign(user(u)))
  /** By user. */
  const [gets, posts]: [Buffer[], string[]] = [[], []]
  const line = `GET /plants?limit=${limit}`
  const getOf = (u: number): Buffer => (gets[u] ??= Buffer.from(`${head(line, tokenOf(u))}\r\n`))
  const more = 'Content-Type: application/json\r\nContent-Length: '
  const postOf = (u: number): string => (posts[u] ??= head('POST /plants', tokenOf(u)) + more)
  let made = 0
  const get = (): Buffer => getOf(made++ % users)
  let posted = offset
  const post = (): string => {
    const body = newPlant(FIRST_POSTED + posted)
    return `${postOf(posted++ % users)}${body.length}\r\n\r\n${body}`
  }
  switch (kind) {
    case 'get':
      return get
    case 'post':
      return post
    case 'mixed':
      return () => (++made % 10 === 0 ? post() : getOf(made % users))
    case 'tokens':
      return () => {
        const token = sign(user(made % users), String(offset + made++))
        return `${head(line, token)}\r\n`
      }
    case 'cursor': {
      // Enough plants after each cursor for a whole page.
      const cursors = plants - limit
      return () => {
        const n = offset + made++
        const u = n % users
        const row = Math.floor(n / users)
        if (row >= cursors && !mayRepeat)
          throw new Error('every cursor of the store was used: take a shorter DUR or fewer RUNS')
        const at = row % cursors
        const after = writeCursor(user(u), BigInt(u * plants + at + 1))
        return `${head(`${line}&after=${after}`, tokenOf(u))}\r\n`
      }
    }
  }
}
