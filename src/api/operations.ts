/* The table of operations, and the routes that follow from it. */

import type { Condition } from '../errors.ts'
import type { HttpResponse } from '../http/response.ts'
import type { Call } from './call.ts'
import { createPlant } from './create-plant.ts'
import { listPlants } from './list-plants.ts'

/** What a client can ask for. `scripts/openapi.ts` has what the description says of it. */
export interface Operation {
  /** The description's name of it: a verb, then what it is about. */
  readonly name: string
  /** GET also serves HEAD, and each path also serves OPTIONS. */
  readonly method: 'GET' | 'POST'
  /**
   * Compared byte by byte; "{name}" is any one segment. It is also the route of the log and of
   * metrics.
   */
  readonly path: string
  /** Which configured scope a token needs. */
  readonly scope: 'read' | 'write'
  /** Whether a request has a body. If not, what a client sends as one is discarded. */
  readonly hasBody: boolean
  /** The failures that not every operation has. */
  readonly errors: readonly Condition[]
  /** The router calls it after the checks that all operations share. */
  readonly handle: (call: Call) => HttpResponse | Promise<HttpResponse>
}

/**
 * Every operation, once. Routes, Allow, scopes and the routes of metrics come from this table, and
 * `scripts/openapi.ts` describes each row.
 */
export const OPERATIONS: readonly Operation[] = [
  {
    name: 'listPlants',
    method: 'GET',
    path: '/plants',
    scope: 'read',
    hasBody: false,
    errors: ['limitInvalid', 'afterInvalid'],
    handle: listPlants,
  },
  {
    name: 'createPlant',
    method: 'POST',
    path: '/plants',
    scope: 'write',
    hasBody: true,
    errors: [
      'contentTypeRepeated',
      'bodyNotUtf8',
      'bodyNotJson',
      'memberRepeated',
      'nameInvalid',
      'idInvalid',
      'tagInvalid',
      'idTaken',
      'bodyTooLarge',
      'mediaTypeUnsupported',
      'contentEncodingUnsupported',
      'storageFull',
    ],
    handle: createPlant,
  },
]

/** The operations of one path. */
export interface Route {
  /** As the table has it. */
  readonly path: string
  /** With HEAD, which is the operation of GET. */
  readonly byMethod: ReadonlyMap<string, Operation>
  /** Every method that the path has, as an Allow header names them. */
  readonly allow: string
  readonly pattern: RegExp
}

export const ROUTES = [...new Set(OPERATIONS.map(({ path }) => path))].map((path): Route => {
  const byMethod = new Map<string, Operation>()
  for (const operation of OPERATIONS.filter((each) => each.path === path)) {
    byMethod.set(operation.method, operation)
    if (operation.method === 'GET') byMethod.set('HEAD', operation)
  }
  // No path of the table has a character that a pattern reads in another way.
  const pattern = new RegExp(`^${path.replace(/\{\w+\}/g, '([^/]+)')}$`)
  return { path, byMethod, allow: [...byMethod.keys(), 'OPTIONS'].join(', '), pattern }
})

/** The route of a path, byte for byte, and what the path has in place of each "{name}". */
export function routeOf(path: string): readonly [Route, readonly string[]] | undefined {
  for (const route of ROUTES) {
    const match = route.pattern.exec(path)
    if (match) return [route, match.slice(1)]
  }
  return undefined
}
