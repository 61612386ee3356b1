import type { Condition } from '../errors.ts'
import type { HttpResponse } from '../http/response.ts'
import type { Call } from './call.ts'
import { createPlant } from './create-plant.ts'
import { listPlants } from './list-plants.ts'

/** What a client can ask for: how it is served, and what the description says of it. */
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
  /** Its first sentence is the summary. */
  readonly description: string
  /** What a GET is as a HEAD. */
  readonly headDescription?: string
  /** By name, those of the path and those of the query. */
  readonly parameters?: Readonly<Record<string, Described>>
  readonly requestBody?: Content
  /** With the status 200. */
  readonly response: Content
  /** Headers that only some of these responses have. */
  readonly headers?: Readonly<Record<string, Described>>
  /** The failures that not every operation has. */
  readonly errors: readonly Condition[]
  /** The router calls it after the checks that all operations share. */
  readonly handle: (call: Call) => HttpResponse | Promise<HttpResponse>
}

/** A parameter, or a header. */
export type Described = readonly [description: string, schema: object]

/** A body in JSON, with examples by name. */
export type Content = readonly [
  description: string,
  schema: object,
  examples: Readonly<Record<string, unknown>>,
]

/** The schemas that have a name in the description are in `scripts/openapi.ts`. */
export const PLANT = { $ref: '#/components/schemas/Plant' }
const NEW_PLANT = { $ref: '#/components/schemas/NewPlant' }
const LIMIT = { type: 'integer', format: 'int32', minimum: 0 }
const CURSOR = { type: 'string', minLength: 1 }
const NEXT_PAGE = {
  type: 'string',
  pattern: '^<\\?limit=[0-9]+&after=[A-Za-z0-9_-]+>; rel="next"$',
}
const MONSTERA = { name: 'Monstera', tag: 'indoor' }

/**
 * Every operation, once. Routes, Allow, scopes, the routes of metrics and the description come from
 * this table.
 */
export const OPERATIONS: readonly Operation[] = [
  {
    name: 'listPlants',
    method: 'GET',
    path: '/plants',
    scope: 'read',
    description: 'Lists the plants of the caller, ascending by id.',
    headDescription: 'Returns the headers of a list.',
    parameters: {
      limit: ['Maximum number of results; without it, all.', LIMIT],
      after: ['Only plants after this cursor, which a Link header contains.', CURSOR],
    },
    response: [
      'The plants.',
      { type: 'array', items: PLANT },
      { page: [MONSTERA, { name: 'Aloe' }] },
    ],
    headers: { Link: ['The next page, if `limit` cut the list (RFC 8288).', NEXT_PAGE] },
    errors: ['limitInvalid', 'afterInvalid'],
    handle: listPlants,
  },
  {
    name: 'createPlant',
    method: 'POST',
    path: '/plants',
    scope: 'write',
    description:
      'Creates a plant. Repeating it is safe: the same id with the same content gets the same ' +
      'response. Each owner has ids of its own.',
    requestBody: [
      'In UTF-8; 1 MiB at most unless the service is configured otherwise.',
      NEW_PLANT,
      { plant: { id: 7, ...MONSTERA } },
    ],
    response: ['The plant is stored, and durable.', PLANT, { plant: MONSTERA }],
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

/** The route of a path, byte for byte, and what the path has in the place of each "{name}". */
export function routeOf(path: string): readonly [Route, readonly string[]] | undefined {
  for (const route of ROUTES) {
    const match = route.pattern.exec(path)
    if (match) return [route, match.slice(1)]
  }
  return undefined
}
