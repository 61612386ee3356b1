import { writeCursor } from '../../dist/api/cursor.js'
import { head } from '../../test/support/wire.ts'
import { type Filling, FIRST_POSTED, newPlant, tokenOf, user } from './plants.ts'

/**
 * What a run asks for. `get`: pages of `limit`, the users in turn. `cursor`: the page after a
 * cursor that is in no cache. `post`: new plants. `mixed`: every tenth request a POST, the others
 * `get`.
 */
export interface Ask extends Filling {
  readonly kind: 'get' | 'cursor' | 'post' | 'mixed'
  readonly limit: number
  readonly connections: number
}

/**
 * The requests of a run, one a call; what repeats is built once. The server has had `made` requests
 * before: ids and cursors continue from there.
 */
export function requests({ kind, limit, users, plants }: Ask, made: number): () => string {
  /** By user. */
  const [gets, posts]: [string[], string[]] = [[], []]
  const target = `/plants?limit=${limit}`
  const length = newPlant(FIRST_POSTED).length
  const lines = ['Content-Type: application/json', `Content-Length: ${length}`]
  const post = (u: number, id: number): string =>
    (posts[u] ??= head('POST', '/plants', { token: tokenOf(u), lines })) + newPlant(id)
  return () => {
    const n = made++
    const [u, row] = [n % users, Math.floor(n / users)]
    const token = tokenOf(u)
    if (kind === 'post') return post(u, FIRST_POSTED + n)
    if (kind === 'mixed' && n % 10 === 0) return post((n / 10) % users, FIRST_POSTED + n)
    if (kind !== 'cursor') return (gets[u] ??= head('GET', target, { token }))
    // Enough plants after each cursor for a whole page.
    const after = BigInt(u * plants + (row % (plants - limit)) + 1)
    return head('GET', `${target}&after=${writeCursor(user(u), after)}`, { token })
  }
}
