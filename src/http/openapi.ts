import { STATUS_CODES } from 'node:http'
import { type Condition, conditions, HttpError } from '../errors.ts'
import { type HttpResponse, jsonResponse } from './response.ts'

/** What is found out before it matters which operation is asked for. */
const ANYWHERE: readonly Condition[] = [
  'malformedRequest',
  'hostInvalid',
  'requestTimeout',
  'headersTooLarge',
  'storageUnavailable',
]
const READING: readonly Condition[] = ['limitInvalid', 'afterInvalid']
const WRITING: readonly Condition[] = [
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
  'overloaded',
  'storageFull',
]
/** What meets only requests that are none of the operations. */
const ELSEWHERE: readonly Condition[] = ['pathUnknown', 'methodNotAllowed', 'methodUnknown']

interface Response {
  readonly description: string
  readonly headers: object
  readonly content: object
}

interface Operation {
  readonly parameters: readonly object[]
  readonly responses: Readonly<Record<string, Response>>
}

let answer: HttpResponse | undefined

/**
 * The OpenAPI 3.1 document of /plants, made when it is first asked for: most services never are.
 */
export function openApiResponse(): HttpResponse {
  return (answer ??= jsonResponse(200, describeService()))
}

function describeService(): object {
  const list = listOperation()
  return {
    openapi: '3.1.0',
    info: {
      title: 'Plant store',
      version: '1.0.0',
      license: { name: 'MIT', identifier: 'MIT' },
      description: `Keeps plant records: creates them, and lists those of the caller.

Every failure has an Error as its body. The values of its member error are stable, the messages are for people. Behind 408, 413, 431 and what is no HTTP (error 40001) the connection is closed. No answer may be cached.

PUT, PATCH and DELETE are answered with 405, every other method with 501, and any other path with 404.`,
    },
    servers: [
      {
        url: '{base_url}',
        variables: {
          base_url: {
            default: 'http://127.0.0.1:8080',
            description: 'Where the service serves plants.',
          },
        },
      },
    ],
    security: [{ bearer: [] }],
    tags: [{ name: 'plants', description: 'The plants of the caller.' }],
    paths: {
      '/plants': {
        get: list,
        post: createOperation(),
        head: {
          ...list,
          operationId: 'headPlants',
          summary: 'The headers of a list',
          description: 'Answered as GET is, without the body.',
          responses: Object.fromEntries(
            Object.entries(list.responses).map(([status, { content, ...bodiless }]) => [
              status,
              bodiless,
            ]),
          ),
        },
        options: {
          operationId: 'plantsOptions',
          summary: 'The methods that are allowed',
          description: 'Needs no token.',
          tags: ['plants'],
          security: [],
          responses: {
            204: { description: 'No Content', headers: { ...REQUEST_ID, ...allow(true) } },
            ...failures((condition) => ANYWHERE.includes(condition)),
          },
        },
      },
    },
    components: {
      schemas: SCHEMAS,
      securitySchemes: {
        bearer: {
          type: 'http',
          scheme: 'bearer',
          bearerFormat: 'JWT',
          description:
            'A JWT of the configured issuer, for the configured audience. Plants belong to its owner claim, and nobody else sees them.',
        },
      },
    },
  }
}

const SCHEMAS = {
  Plant: {
    type: 'object',
    required: ['name'],
    properties: {
      name: { type: 'string', description: 'The name of the plant: any Unicode text.' },
      tag: {
        type: 'string',
        description: 'Tag that specifies the type of the plant: any Unicode text.',
      },
    },
  },
  NewPlant: {
    description: 'Members of other names are ignored; one name twice is an error.',
    allOf: [
      ref('Plant'),
      {
        type: 'object',
        required: ['id'],
        properties: {
          // Without its bounds: JSON that passes through doubles, as most tools have it, would
          // round the upper one out of the range.
          id: {
            type: 'integer',
            format: 'int64',
            description:
              'Identification number of the plant: from -2^63 to 2^63-1, exact over that range in any notation of JSON. Clients that keep numbers as doubles are exact to 2^53 only.',
          },
        },
      },
    ],
  },
  Error: {
    type: 'object',
    required: ['error', 'message'],
    properties: {
      error: {
        type: 'integer',
        format: 'int32',
        description: 'Numeric error value: the status times 100, and a running number.',
      },
      message: { type: 'string', description: 'Error message text.' },
    },
  },
}

function listOperation(): Operation {
  const link = header(
    false,
    'Where `limit` cut the list short: the query that lists the plants behind it (RFC 8288).',
    { type: 'string', pattern: '^<\\?limit=[0-9]+&after=[A-Za-z0-9_-]+>; rel="next"$' },
  )
  return {
    ...operation(
      'listPlants',
      'Lists plants',
      'Returns all plants that the caller has access to, ascending by id. Unknown parameters are ignored.',
    ),
    parameters: [
      {
        name: 'limit',
        in: 'query',
        description: 'The maximum number of results to return; absent, all.',
        schema: { type: 'integer', format: 'int32', minimum: 0 },
      },
      {
        name: 'after',
        in: 'query',
        description:
          'Only plants behind this cursor, which the `Link` of an earlier answer to the same owner holds. It is opaque, and stays valid.',
        schema: { type: 'string', minLength: 1 },
      },
    ],
    responses: {
      200: success(
        'The plants.',
        { type: 'array', items: ref('Plant') },
        [{ name: 'Monstera', tag: 'indoor' }, { name: 'Aloe' }],
        { Link: link },
      ),
      ...failures((condition) => !WRITING.includes(condition)),
    },
  }
}

function createOperation(): object {
  return {
    ...operation(
      'createPlant',
      'Creates a plant',
      'A plant with the same id and the same content again is answered as the first was, so that a POST whose answer was lost can be repeated. Each owner has ids of its own.',
    ),
    requestBody: {
      required: true,
      description: 'In UTF-8, of 1 MiB at most unless the service is configured otherwise.',
      content: json(ref('NewPlant'), {
        plant: { value: { id: 7, name: 'Monstera', tag: 'indoor' } },
      }),
    },
    responses: {
      200: success('The plant is stored, and on the disk.', ref('Plant'), {
        name: 'Monstera',
        tag: 'indoor',
      }),
      ...failures((condition) => !READING.includes(condition)),
    },
  }
}

function operation(operationId: string, summary: string, description: string): object {
  return { operationId, summary, description, tags: ['plants'] }
}

function success(
  description: string,
  schema: object,
  value: unknown,
  headers: object = {},
): Response {
  return {
    description,
    headers: { ...REQUEST_ID, ...headers },
    content: json(schema, { plants: { value } }),
  }
}

/** The failures of an operation by status. */
function failures(canMeet: (condition: Condition) => boolean): Readonly<Record<string, Response>> {
  const problems = [...conditions.keys()]
    .filter((condition) => canMeet(condition) && !ELSEWHERE.includes(condition))
    .map((condition) => new HttpError(condition))
  const statuses = [...new Set(problems.map(({ status }) => status))]
  const elsewhere = ELSEWHERE.map((condition) => new HttpError(condition))
  return {
    ...Object.fromEntries(
      statuses.map((status) => [
        status,
        failure(
          STATUS_CODES[status] ?? '',
          FAILURE_HEADERS[status],
          problems.filter((problem) => problem.status === status),
        ),
      ]),
    ),
    default: failure(
      'Any other failure. The examples are of requests that are none of these operations.',
      allow(false),
      elsewhere,
    ),
  }
}

function failure(
  description: string,
  headers: object | undefined,
  problems: readonly HttpError[],
): Response {
  const examples = Object.fromEntries(
    problems.map(({ condition, error, message }) => [condition, { value: { error, message } }]),
  )
  return {
    description,
    headers: { ...REQUEST_ID, ...headers },
    content: json(ref('Error'), examples),
  }
}

const REQUEST_ID = {
  'Request-Id': header(
    true,
    "The request's own Request-Id where it is 1 to 128 visible ASCII characters, else a new one.",
    { type: 'string', pattern: '^[!-~]{1,128}$' },
  ),
}
const RETRY_AFTER = {
  'Retry-After': header(true, 'Seconds to wait.', { type: 'integer', minimum: 1 }),
}

/** Besides the Request-Id, by status. */
const FAILURE_HEADERS: Readonly<Record<number, object>> = {
  400: wwwAuthenticate(false),
  401: wwwAuthenticate(true),
  403: wwwAuthenticate(true),
  415: {
    'Accept-Encoding': header(false, 'With error 41502: the one coding that is accepted.', {
      const: 'identity',
    }),
  },
  429: RETRY_AFTER,
  503: RETRY_AFTER,
}

function wwwAuthenticate(required: boolean): object {
  return {
    'WWW-Authenticate': header(
      required,
      `The challenge of RFC 6750${required ? '' : ', with error 40003'}.`,
      { type: 'string', pattern: '^Bearer realm="plants"' },
    ),
  }
}

function allow(required: boolean): object {
  return {
    Allow: header(
      required,
      `The methods that are allowed${required ? '' : ', with error 40501'}.`,
      { type: 'string' },
    ),
  }
}

function header(required: boolean, description: string, schema: object): object {
  return { required, description, schema }
}

function json(schema: object, examples: object): object {
  return { 'application/json': { schema, examples } }
}

function ref(name: string): object {
  return { $ref: `#/components/schemas/${name}` }
}
