/* The table of operations, and the routes that follow from it. */

import { HttpError } from '../errors.ts'
import type { HttpResponse } from '../http/response.ts'
import type { Call } from './call.ts'
import { createPlant } from './create-plant.ts'
import { listPlants } from './list-plants.ts'

/** What a client can ask for. `scripts/openapi.ts` has what the description says of it. */
export interface Operation {
  /** The description's name of it: a verb, then what it is about. */
  readonly name: string
  /** Only POST has a body. GET also serves HEAD, and each path also serves OPTIONS. */
  readonly method: 'GET' | 'POST'
  /**
   * Compared byte by byte; "{name}" is any one segment. It is also the route of the log and of
   * metrics.
   */
  readonly path: string
  /** Which configured scope a token needs. */
  readonly scope: 'read' | 'write'
  /** The router calls it after the checks that all operations share. */
  readonly handle: (call: Call) => HttpResponse | Promise<HttpResponse>
}

/**
 * Every operation, once. Routes, Allow, scopes and the routes of metrics come from this table, and
 * `scripts/openapi.ts` describes each row.
 */
export const OPERATIONS: readonly Operation[] = [
  { name: 'listPlants', method: 'GET', path: '/plants', scope: 'read', handle: listPlants },
  { name: 'createPlant', method: 'POST', path: '/plants', scope: 'write', handle: createPlant },
]

/** The operations of each path. */
export const ROUTES = [...new Set(OPERATIONS.map(({ path }) => path))].map((path) => {
  /** With HEAD, which is the operation of GET. */
  const byMethod = new Map<string, Operation>()
  for (const operation of OPERATIONS.filter((each) => each.path === path)) {
    byMethod.set(operation.method, operation)
    if (operation.method === 'GET') byMethod.set('HEAD', operation)
  }
  // No path of the table has a character that a pattern reads in another way.
  const pattern = new RegExp(`^${path.replace(/\{\w+\}/g, '([^/]+)')}$`)
  // Every method that the path has, as an Allow header names them.
  return { path, byMethod, allow: [...byMethod.keys(), 'OPTIONS'].join(', '), pattern }
})

export type Route = (typeof ROUTES)[number]

/**
 * The route of a path, byte for byte, and what the path has in place of each "{name}".
 * @throws HttpError `pathUnknown`.
 */
export function routeOf(path: string): readonly [Route, readonly string[]] {
  for (const route of ROUTES) {
    const match = route.pattern.exec(path)
    if (match) return [route, match.slice(1)]
  }
  throw new HttpError('pathUnknown')
}
