import type { Condition } from '../errors.ts'
import type { HttpResponse } from '../http/response.ts'
import type { Call, OperationOptions } from './call.ts'
import { createPlant } from './create-plant.ts'
import { listPlants } from './list-plants.ts'

/** What a client can ask for. */
interface Operation {
  /** The description's name of it. */
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
  /** The failures that no other operation has. */
  readonly errors: readonly Condition[]
  /** From the checks on that all operations share; the router has made those. */
  readonly handle: (call: Call, options: OperationOptions) => HttpResponse | Promise<HttpResponse>
}

/**
 * Every operation, once. Routes, Allow, scopes, the routes of metrics and the description come from
 * this table.
 */
export const OPERATIONS = [
  {
    name: 'listPlants',
    method: 'GET',
    path: '/plants',
    scope: 'read',
    errors: ['limitInvalid', 'afterInvalid'],
    handle: listPlants,
  },
  {
    name: 'createPlant',
    method: 'POST',
    path: '/plants',
    scope: 'write',
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
] as const satisfies readonly Operation[]

export type OperationName = (typeof OPERATIONS)[number]['name']

/** The operations of one path. */
export interface Route {
  /** As the table has it. */
  readonly path: string
  readonly byMethod: ReadonlyMap<string, Operation>
  /** Every method that the path has, as an Allow header names them. */
  readonly allow: string
  readonly pattern: RegExp
}

export const ROUTES: readonly Route[] = routesOf(OPERATIONS)

/** The route of a path, byte for byte, and what the path has in the place of each "{name}". */
export function routeOf(path: string): readonly [Route, readonly string[]] | undefined {
  for (const route of ROUTES) {
    const match = route.pattern.exec(path)
    if (match) return [route, match.slice(1)]
  }
  return undefined
}

function routesOf(operations: readonly Operation[]): readonly Route[] {
  const paths = [...new Set(operations.map(({ path }) => path))]
  return paths.map((path) => {
    const own = operations.filter((operation) => operation.path === path)
    const methods = own.flatMap(({ method }) => (method === 'GET' ? ['GET', 'HEAD'] : [method]))
    return {
      path,
      byMethod: new Map(own.map((operation) => [operation.method, operation])),
      allow: [...methods, 'OPTIONS'].join(', '),
      // No path of the table has a character that a pattern reads in another way.
      pattern: new RegExp(`^${path.replace(/\{\w+\}/g, '([^/]+)')}$`),
    }
  })
}
