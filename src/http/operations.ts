import type { Condition } from '../errors.ts'
import { type Call, createPlant, listPlants, type PlantOptions } from './plants.ts'
import type { HttpResponse } from './response.ts'

/** What a client can ask for. */
interface Operation {
  /** The description's name of it. */
  readonly name: string
  /** GET also serves HEAD, and each path also serves OPTIONS. */
  readonly method: 'GET' | 'POST'
  /** Compared byte by byte. It is also the route of the log and of metrics. */
  readonly path: string
  /** Which configured scope a token needs. */
  readonly scope: 'read' | 'write'
  /** The failures that no other operation has. */
  readonly errors: readonly Condition[]
  /** From the checks on that all operations share; the router has made those. */
  readonly handle: (call: Call, options: PlantOptions) => HttpResponse | Promise<HttpResponse>
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

/** The operations of each path, by method. */
export const ROUTES: ReadonlyMap<string, ReadonlyMap<string, Operation>> = routesOf(OPERATIONS)

function routesOf(operations: readonly Operation[]): Map<string, Map<string, Operation>> {
  const routes = new Map<string, Map<string, Operation>>()
  for (const operation of operations) {
    const ofPath = routes.get(operation.path) ?? new Map<string, Operation>()
    routes.set(operation.path, ofPath.set(operation.method, operation))
  }
  return routes
}
